"""Split files: frozen lists of task ids, one JSON object per line; ``splits.json`` keeps their sizes and hashes."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows


def split_hash(ids: Sequence[object]) -> str:
    """Hash of the ids in order, which identifies a split."""
    return blake2b("\n".join(map(str, ids)).encode(), digest_size=16).hexdigest()


def sizes(splits: Mapping[Any, Sequence[object]]) -> dict[str, dict[str, Any]]:
    """Split -> number of ids and their hash, the content of ``splits.json``."""
    return {name: {"n": len(ids), "hash": split_hash(ids)} for name, ids in splits.items()}


def to_rows(env_name: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The rows {"env": …, "task_id": …} of a split file; the inverse of ``load_split``."""
    return [{"env": env_name, "task_id": task_id} for task_id in ids]


def load_split(path: Path, env_name: str) -> list[int]:
    """Task ids of a split file; a split may be empty.

    Raises:
        UserError: the file is missing, or a line has no task id or is of another environment.
    """
    ids = []
    for line, row in read_rows(path, may_be_empty=True):
        task_id = row.get("task_id")
        if not isinstance(task_id, int) or isinstance(task_id, bool) or row.get("env") != env_name:
            raise UserError(f"{path}, line {line}: not a task of {env_name}; run the method's data stage again.")
        ids.append(task_id)
    return ids
