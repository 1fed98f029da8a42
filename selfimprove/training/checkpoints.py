"""When a checkpoint counts: its files are on disk first, then a seal that lists them; torn ones are never read."""

from __future__ import annotations

import json
import os
from pathlib import Path

WHOLE = "whole.json"


def newest_whole(folder: Path) -> Path | None:
    """The checkpoint with the highest step whose seal matches its files; torn ones do not count."""
    whole = [one for one in folders(folder) if is_whole(one)]
    return whole[-1] if whole else None


def folders(folder: Path) -> list[Path]:
    """All checkpoint folders, whole or torn, by step."""
    found = [one for one in folder.glob("checkpoint-*") if one.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda one: int(one.name.removeprefix("checkpoint-")))


def seal(folder: Path) -> None:
    """Write, last of all, the list of the checkpoint's files and sizes; everything is on disk before it."""
    sizes = {}
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
        sizes[str(file.relative_to(folder))] = file.stat().st_size
    part = folder / (WHOLE + ".part")
    with part.open("w", encoding="utf-8") as handle:
        json.dump(sizes, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(part, folder / WHOLE)


def is_whole(folder: Path) -> bool:
    """Whether the folder is sealed, and every file still has its size."""
    try:
        sizes = json.loads((folder / WHOLE).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
