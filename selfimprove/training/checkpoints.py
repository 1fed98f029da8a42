"""Sealed checkpoints: files are on disk before a seal with their hashes is written; damaged ones are never loaded."""

import hashlib
import json
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.publish import flush, make_durable, write_json

WHOLE = "whole.json"
READERS = 8
"""Number of files that are read and hashed concurrently."""
VISIBLE_SECONDS = 120.0
"""Limit on the time until all nodes see a checkpoint that the first one sees."""


def newest_whole(folder: Path) -> Path | None:
    """The complete checkpoint (``is_whole``) with the highest step, or None."""
    whole = [one for one in folders(folder) if is_whole(one)]
    return whole[-1] if whole else None


def newest_for_all(folder: Path) -> Path | None:
    """In each training process: the newest complete checkpoint as the first process sees it, or None.

    A file system that several nodes share may show the others a new checkpoint late, so they wait for it.

    Raises:
        UserError: it is not complete here within ``VISIBLE_SECONDS``.
    """
    from accelerate.utils import broadcast_object_list

    newest = newest_whole(folder)
    (name,) = broadcast_object_list([newest.name if newest else None])
    if name is None:
        return None
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not is_whole(folder / name):
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder / name} is not complete on {socket.gethostname()}, but it is on the first node; let all "
                "nodes share this folder, and run again."
            )
        time.sleep(1)
    return folder / name


def folders(folder: Path) -> list[Path]:
    """All checkpoint folders, complete or not, by step."""
    found = [one for one in folder.glob("checkpoint-*") if one.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda one: int(one.name.removeprefix("checkpoint-")))


def seal(folder: Path) -> None:
    """Write the sizes and hashes of the checkpoint's files as its last file, after flushing all others to disk."""
    make_durable(folder)
    files = sorted(one for one in folder.rglob("*") if one.is_file() and one.name != WHOLE)
    with ThreadPoolExecutor(READERS) as readers:
        hashes = readers.map(_hash, files)
        sealed = {
            str(file.relative_to(folder)): [file.stat().st_size, it] for file, it in zip(files, hashes, strict=True)
        }
    write_json(folder / WHOLE, sealed)
    flush(folder)
    flush(folder.parent)


def keep_newest(folder: Path, count: int) -> None:
    """Delete all complete checkpoints except the newest ``count``."""
    for old in [one for one in folders(folder) if is_whole(one)][:-count]:
        shutil.rmtree(old)


def is_whole(folder: Path) -> bool:
    """Whether the folder is sealed and every file has its recorded size; ``drop_damaged`` checks the contents."""
    try:
        contents = json.loads((folder / WHOLE).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, (size, _) in contents.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def drop_damaged(folder: Path) -> None:
    """Delete and report the newest checkpoints if their files do not match their seals; called before resuming.

    Only the process that starts the others calls this. It verifies the newest sealed checkpoint, and older ones until
    one is intact. Checkpoints without a seal were never finished and are left to the trainer.
    """
    sealed = [one for one in folders(folder) if (one / WHOLE).exists()]
    while sealed and (damaged := _damaged(sealed[-1])):
        lost = sealed.pop()
        shutil.rmtree(lost)
        goes_on = f"step {sealed[-1].name.removeprefix('checkpoint-')}" if sealed else "the start"
        print(
            f"{lost / damaged} is damaged: {lost.name} was deleted, and training resumes from {goes_on}.",
            file=sys.stderr,
            flush=True,
        )


def _damaged(folder: Path) -> str | None:
    """The first file that does not match the seal, the seal itself if it is unreadable, or None."""
    try:
        contents = json.loads((folder / WHOLE).read_text(encoding="utf-8"))
        with ThreadPoolExecutor(READERS) as readers:
            hashes = list(readers.map(_hash, [folder / name for name in contents]))
        return next((name for name, it in zip(contents, hashes, strict=True) if it != contents[name][1]), None)
    except (OSError, ValueError, TypeError, LookupError):
        return WHOLE


def _hash(file: Path) -> str | None:
    """Hash of the file's content; None if there is no such file."""
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "blake2b").hexdigest()
    except OSError:
        return None
