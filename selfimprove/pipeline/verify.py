"""``make verify``: checks that outputs and DVC's cache still match the hashes in dvc.lock.

DVC itself trusts a file whose size and modification time have not changed, and checks out a damaged cache file as up to
date. Here every file is read; one that the cache and the workspace share by a hard link is read once.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError, first_line
from selfimprove.core.publish import FINDER
from selfimprove.core.yaml import read_yaml, refuse_conflict
from selfimprove.pipeline.recorded import LOCK

FOLDER = ".dir"
"""Suffix of a folder's hash, for which the cache holds a JSON list of the folder's files and their hashes."""
KEPT_BY_GIT = Path("results/headline")
"""The metrics that are committed instead of cached (``cache: false`` in dvc.yaml)."""
OBJECTS = Path("files/md5")
"""Location of the objects below DVC's cache folder."""
HOW_TO_GET = "`make repro` runs or restores those of params.yaml, `make fetch` downloads published ones"
"""The remedy for stages without outputs, as the second half of a sentence."""


class Out(NamedTuple):
    """A file or folder that dvc.lock names, or a file in such a folder: its stage, path and MD5 (folders: ``.dir``)."""

    stage: str
    path: Path
    md5: str


@one_sentence()
def main() -> None:
    """Raises: UserError: one sentence per file that does not match; there are no outputs."""
    listed = list(outputs())
    absent = stages_absent(listed, lambda out: out.path.exists())
    outs = [out for out in listed if out.stage not in absent]
    if not outs:
        raise UserError(f"no outputs are here yet; {HOW_TO_GET}.")
    if faults := dict.fromkeys(found(outs)):
        raise UserError("\n".join(faults))
    print(f"{sum(not out.md5.endswith(FOLDER) for out in outs)} files and DVC's cache match dvc.lock.")
    if absent:
        print(f"Stages of dvc.lock without outputs here: {len(absent)}, such as {min(absent)}; {HOW_TO_GET}.")


def outputs() -> Iterator[Out]:
    """Every output of every finished stage; a folder precedes its files.

    Raises:
        UserError: dvc.lock is missing, damaged or not merged.
    """
    if not LOCK.is_file():
        raise UserError(f"{LOCK} does not exist, so there are no outputs yet; run `make repro`.")
    refuse_conflict(LOCK, LOCK.read_bytes())
    try:
        for out in outputs_of(read_yaml(LOCK)):
            yield from _expanded(out)
    except (UserError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{LOCK} is truncated or damaged; run `make repro`, which restores the last complete copy."
        ) from None


def outputs_of(lock: Any) -> list[Out]:
    """Every output in ``lock``, the content of a dvc.lock, without the files of folders.

    Raises:
        ValueError: it lacks stages, or an output's path or hash.
    """
    try:
        return [
            Out(stage, Path(out["path"]), str(out["md5"]))
            for stage, entry in lock["stages"].items()
            for out in entry.get("outs", [])
        ]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("it lacks stages, or an output's path or hash") from None


def stages_absent(outs: list[Out], there: Callable[[Out], bool]) -> set[str]:
    """The stages that lack outputs and have none of their own there, so that they have not run or been published.

    A clone's dvc.lock names the default's stages, and those of another profile stay in it. An output with the same
    content as one of another stage, such as an empty list, is not a stage's own; nor is what git keeps.
    """
    stages = defaultdict(set)
    cached = [out for out in outs if not out.path.is_relative_to(KEPT_BY_GIT)]
    for out in cached:
        stages[out.md5].add(out.stage)
    found = {out.stage for out in cached if len(stages[out.md5]) == 1 and there(out)}
    return {out.stage for out in cached if not there(out)} - found


def found(outs: list[Out]) -> Iterator[str]:
    """One sentence per damaged, missing or unlisted file."""
    for out in outs:
        kept = _in_cache(out.md5)
        whole = not kept.is_file() or md5_of(kept) == out.md5.removesuffix(FOLDER)
        again = f"`dvc repro {out.stage}`"  # --force would repeat all stages before it, too
        renew = f"delete it, then run {again}"
        if not whole:
            yield f"{kept} (of {out.path}) is damaged in DVC's cache; delete it and {out.path}, then run {again}."
        elif out.md5.endswith(FOLDER):
            if kept.is_file():  # the files that it lists are outputs of their own
                listed = {out.path / entry["relpath"] for entry in _listed(out)}
                for file in sorted(set(_files_of(out.path)) - listed):
                    remedy = f"move it away or run `dvc checkout --force {out.stage}`, which deletes it"
                    yield f"{file} is not in dvc.lock; {remedy}."
            elif not out.path.is_dir():
                yield f"{out.path} is missing, also from DVC's cache; run {again}."
            elif not _listed(out):
                yield f"{out.path} does not match dvc.lock and is missing from DVC's cache; {renew}."
        elif not out.path.is_file() or md5_of(out.path) != out.md5:
            what, do = ("does not match dvc.lock", renew) if out.path.exists() else ("is missing", f"run {again}")
            restorable = kept.is_file() and not out.path.is_relative_to(KEPT_BY_GIT)  # those, DVC does not check out
            remedy = f"`dvc checkout --force {out.stage}` restores it" if restorable else do
            yield f"{out.path} {what}; {remedy}."
    named = {_in_cache(out.md5) for out in outs}
    for file in sorted(cache_of(Path()).glob("??/*")):
        if file not in named and file.is_file() and md5_of(file) != (file.parent.name + file.name).removesuffix(FOLDER):
            yield f"{file}, of an older result, is damaged in DVC's cache; delete it."


def _expanded(out: Out) -> Iterator[Out]:
    """The output, followed by its files if it is a folder."""
    yield out
    if out.md5.endswith(FOLDER):
        for entry in _listed(out):
            yield Out(out.stage, out.path / entry["relpath"], entry["md5"])


def _listed(out: Out) -> list[dict[str, Any]]:
    """The files of a folder from the cache's list; without one, from the workspace if they match the folder's hash.

    Empty if neither is valid (an output folder is never empty).
    """
    kept = _in_cache(out.md5)
    if kept.is_file():
        whole = md5_of(kept) == out.md5.removesuffix(FOLDER)
        return json.loads(kept.read_bytes()) if whole else []
    files = {file.relative_to(out.path).as_posix(): file for file in _files_of(out.path)}
    there = [{"md5": md5_of(files[name]), "relpath": name} for name in sorted(files)]
    text = json.dumps(there, sort_keys=True).encode()  # DVC's serialisation, whose hash is in dvc.lock
    same = hashlib.md5(text, usedforsecurity=False).hexdigest() == out.md5.removesuffix(FOLDER)
    return there if same else []


def _files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and file.name != FINDER]


def _in_cache(md5: str) -> Path:
    return cache_of(Path()) / md5[:2] / md5[2:]


@cache
def cache_of(root: Path) -> Path:
    """The folder of DVC's cache objects, which may be a shared one if the repository's config names it.

    Raises:
        UserError: DVC cannot read its config.
    """
    from dvc.config import Config, ConfigError

    own = root / ".dvc"
    try:
        named = Config(dvc_dir=str(own), validate=False).get("cache", {}).get("dir") if own.is_dir() else None
    except (ConfigError, ValueError) as error:
        raise UserError(
            f"DVC cannot read its config ({first_line(error)}); fix {own}/config or config.local."
        ) from None
    place = Path(named or own / "cache").absolute()
    inside = place.relative_to(root.absolute()) if place.is_relative_to(root.absolute()) else place
    return root / inside / OBJECTS


_KNOWN: dict[tuple[int, int], str] = {}
"""(device, inode) -> hash, so that hard links to one file are read once."""


def md5_of(file: Path) -> str:
    """MD5 of a file's content."""
    status = file.stat()
    key = (status.st_dev, status.st_ino)
    if key not in _KNOWN:
        with file.open("rb") as content:
            _KNOWN[key] = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return _KNOWN[key]


if __name__ == "__main__":
    main()
