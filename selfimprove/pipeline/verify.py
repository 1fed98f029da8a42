"""``make verify``: whether outputs and DVC's cache still hold the bytes that dvc.lock names.

DVC itself trusts a file whose size and time have not changed, and checks a damaged cache file out as up to date. Here
every file is read. The cache shares its files with the working folder (hard links): a file is read once.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError, first_line

LOCK = Path("dvc.lock")
FOLDER = ".dir"
"""Suffix of the hash of a folder: the cache then holds a JSON list of its files and their hashes."""
OBJECTS = Path("files/md5")
"""Below the folder of DVC's cache."""


class Out(NamedTuple):
    """A file that dvc.lock names, directly or in a folder: its stage, and its MD5 hash (``.dir``: a folder's)."""

    stage: str
    path: Path
    md5: str


@one_sentence()
def main() -> None:
    """Exit with 2 and a sentence a damaged file."""
    try:
        outs = list(outputs())
        faults = list(dict.fromkeys(found(outs)))
    except UserError as error:
        outs, faults = [], [str(error)]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        sys.exit(2)
    print(f"{sum(not out.md5.endswith(FOLDER) for out in outs)} files and DVC's cache match dvc.lock.")


def outputs() -> Iterator[Out]:
    """Every output of every finished stage; a folder comes before its files.

    Raises:
        UserError: there is no dvc.lock, or it is torn.
    """
    if not LOCK.is_file():
        raise UserError(f"{LOCK} does not exist, so there are no outputs yet; run `make repro`.")
    try:
        stages = YAML(typ="safe").load(LOCK.read_bytes())["stages"]
        listed = [(stage, out) for stage, entry in stages.items() for out in entry.get("outs", [])]
        for stage, out in listed:
            yield from _expanded(Out(stage, Path(out["path"]), out["md5"]))
    except (YAMLError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{LOCK} is truncated or damaged; run `make repro`, which restores the last complete copy."
        ) from None


def found(outs: list[Out]) -> Iterator[str]:
    """A sentence for each file that is damaged or gone."""
    for out in outs:
        kept = _in_cache(out.md5)
        whole = not kept.is_file() or md5_of(kept) == out.md5.removesuffix(FOLDER)
        again = f"`dvc repro --force {out.stage}`"
        if not whole:
            yield f"{kept} (of {out.path}) is damaged in DVC's cache; delete it and {out.path}, then run {again}."
        elif out.md5.endswith(FOLDER):
            if kept.is_file():
                continue  # its files are named one by one
            if not out.path.is_dir():
                yield f"{out.path} is missing, also from DVC's cache; run {again}."
            elif not _listed(out):
                yield f"{out.path} does not match dvc.lock and is missing from DVC's cache; run {again}."
        elif not out.path.is_file() or md5_of(out.path) != out.md5:
            what = "does not match dvc.lock" if out.path.exists() else "is missing"
            remedy = f"`dvc checkout --force {out.stage}` restores it" if kept.is_file() else f"run {again}"
            yield f"{out.path} {what}; {remedy}."
    named = {_in_cache(out.md5) for out in outs}
    for file in sorted(cache_of(Path()).glob("??/*")):
        if file not in named and file.is_file() and md5_of(file) != (file.parent.name + file.name).removesuffix(FOLDER):
            yield f"{file}, of an older result, is damaged in DVC's cache; delete it."


def _expanded(out: Out) -> Iterator[Out]:
    """The output, and of a folder its files."""
    yield out
    if out.md5.endswith(FOLDER):
        for entry in _listed(out):
            yield Out(out.stage, out.path / entry["relpath"], entry["md5"])


def _listed(out: Out) -> list[dict[str, Any]]:
    """The files of a folder, as the cache lists them; where it holds no list, as they are, if they are the named ones.

    Empty if neither is so: a folder that is an output has files.
    """
    kept = _in_cache(out.md5)
    if kept.is_file():
        whole = md5_of(kept) == out.md5.removesuffix(FOLDER)
        return json.loads(kept.read_bytes()) if whole else []
    files = {file.relative_to(out.path).as_posix(): file for file in out.path.rglob("*") if file.is_file()}
    there = [{"md5": md5_of(files[name]), "relpath": name} for name in sorted(files)]
    text = json.dumps(there, sort_keys=True).encode()  # as DVC writes the list whose hash dvc.lock holds
    same = hashlib.md5(text, usedforsecurity=False).hexdigest() == out.md5.removesuffix(FOLDER)
    return there if same else []


def _in_cache(md5: str) -> Path:
    return cache_of(Path()) / md5[:2] / md5[2:]


@cache
def cache_of(root: Path) -> Path:
    """Where the objects of DVC's cache are: a repository's config may name a folder that several people share.

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
"""(device, inode) -> hash: a hard link to a file that was read is not read again."""


def md5_of(file: Path) -> str:
    """Hash of a file's content."""
    status = file.stat()
    key = (status.st_dev, status.st_ino)
    if key not in _KNOWN:
        with file.open("rb") as content:
            _KNOWN[key] = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return _KNOWN[key]


if __name__ == "__main__":
    main()
