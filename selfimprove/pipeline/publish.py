"""Files appear whole or not at all: written aside, then moved into place with ``os.replace``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


def publish(source: Path, target: Path, trash: Path) -> None:
    """Move a finished file or folder to ``target``; whatever stood there goes to ``trash`` (same file system)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        trash.mkdir(parents=True, exist_ok=True)
        os.replace(target, trash / uuid4().hex)
    os.replace(source, target)


def link_copy(source: Path, target: Path) -> None:
    """A second name (hard link, else a copy) for a file, or for every file of a folder."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(str(source), str(target))


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys: equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all, lines ending as they do in ``text``."""
    with aside(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A path beside ``target`` to write to: it takes the target's place when the block ends well, else it is gone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".part-{target.name}")  # its ending says a file's format
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _link(source: str, target: str) -> str:
    try:
        os.link(os.path.realpath(source), target)  # a symbolic link, as DVC makes them across disks, is followed
    except OSError:
        shutil.copy2(source, target)
    return target
