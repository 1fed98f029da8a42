"""Atomic publication of files: written to a temporary name, made durable, then moved into place with ``os.replace``.

Durable means that a power cut cannot leave a name with half of its content: a file is flushed to disk before it is
renamed, and the folder that holds the new name is flushed afterwards.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from selfimprove.core.errors import FULL, UserError, fixed

REPLACED = ".replaced-"
"""Name prefix of a replaced folder that is about to be removed."""

FINDER = ".DS_Store"
"""A file that macOS adds to a folder that is opened in the Finder; it never belongs to an output."""


def publish(source: Path, target: Path) -> None:
    """Move a finished file or folder to ``target``, across file systems if necessary, replacing what was there.

    If that fails, the target is as before. Leftovers of a killed process beside the target (a replaced folder, a
    partial copy) are removed.

    Raises:
        UserError: the target's folder can't be created, or the target is a device or a pipe.
    """
    _prepare(target)
    part = target.with_name(f".part-{target.name}")
    remove(part)
    make_durable(source)
    try:
        _replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        try:  # another file system: copy beside the target first
            shutil.copytree(source, part) if source.is_dir() else shutil.copyfile(source, part)
            make_durable(part)
            _replace(part, target)
        finally:
            remove(part)
    flush(target.parent)
    for left in target.parent.glob(f"{REPLACED}{target.name}-*"):
        remove(left)


def _replace(source: Path, target: Path) -> None:
    """As ``os.replace``, but also of a folder that is not empty, or of anything by a folder; it is moved aside."""
    old = None
    if (target.is_dir() and not target.is_symlink()) or (source.is_dir() and os.path.lexists(target)):
        old = target.with_name(f"{REPLACED}{target.name}-{uuid4().hex}")
        os.replace(target, old)
    try:
        os.replace(source, target)
    except OSError:
        if old is not None:
            os.replace(old, target)
        raise


def make_durable(path: Path) -> None:
    """Flush a file, or a folder with all files and folders below it, to disk."""
    for inner in path.rglob("*") if path.is_dir() else []:
        if not inner.is_symlink():
            flush(inner)
    flush(path)


def link_copy(source: Path, target: Path) -> None:
    """Create a hard link (a copy if links are not possible) of a file, or of every file in a folder."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(str(source), str(target))


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys: equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, with the line endings of ``text``."""
    with aside(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; it replaces the target if the block succeeds and is removed otherwise.

    Raises:
        UserError: the target is a folder, a device or a pipe, or can't be written.
    """
    if os.path.isdir(target) and not os.path.islink(target):
        raise UserError(f"{target} is a folder; {'move it away' if fixed(target) else 'name a file'}.")
    _prepare(target)
    part = target.with_name(f".part-{target.name}")  # keep the suffix, which determines the format
    try:
        remove(part)  # of a killed process; a folder would be added to
        yield part
        flush(part)
        os.replace(part, target)
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # errors of write() carry no file name
            error.filename = str(target)
        if error.errno in FULL or str(error.filename) != str(part):
            raise
        remedy = "fix that" if fixed(target) else "use another path"
        raise UserError(f"{target} can't be written ({error.strerror}); {remedy}.") from None
    finally:
        if os.path.lexists(part):
            remove(part)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prepare(target: Path) -> None:
    """Create the target's folder. Raises: UserError: that fails, or the target must not be replaced by a rename."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"{target} can't be written: {target.parent} can't be created as a folder ({error.strerror}); use another "
            "path."
        ) from None
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        # A rename would replace /dev/stdout, or /dev/null for the whole system.
        raise UserError(f"{target} is a device or a pipe; {'move it away' if fixed(target) else 'name a file'}.")


def remove(path: Path) -> None:
    """Delete a file, a link or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(source: str, target: str) -> str:
    try:
        os.link(os.path.realpath(source), target)  # follow symbolic links, which DVC creates across disks
    except OSError:
        shutil.copy2(source, target)
    return target
