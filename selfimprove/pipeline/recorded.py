"""Compares params.yaml with the params that DVC records: those of a running stage, and those of finished ones.

A stage reads params.yaml when it starts, and DVC reads it again when the stage has ended. If the stage's params were
edited in between, DVC would record the new values with outputs of the old ones. The stage fails instead, so that DVC
records nothing and runs it again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml

PARAMS, GRAPH, LOCK = Path("params.yaml"), Path("dvc.yaml"), Path("dvc.lock")
SUMMARIES = Path("results/summary")


def check_unedited(stage: str, values: Mapping[str, Any]) -> None:
    """Compare the stage's params with ``values``, the content of params.yaml when the stage started.

    Raises:
        UserError: one of them has another value now.
    """
    try:
        now = read_yaml(PARAMS)
    except UserError:
        now = {}
    if now == values:
        return
    edited = [key for key in recorded_keys(stage) if _at(now, key) != _at(values, key)]
    if edited:
        raise UserError(
            f"{edited[0]} was edited in params.yaml while the stage ran, so its outputs are not recorded; run the same "
            "command again."
        )


def recorded_keys(stage: str) -> list[str]:
    """The keys of params.yaml that dvc.yaml lists for a stage such as ``rise-generate@iter1``."""
    name, _, item = stage.partition("@")
    entry = read_yaml(GRAPH)["stages"][name]
    return [key.replace("${key}", item) for key in entry.get("do", entry).get("params", [])]


def has_results(method: str, values: Mapping[str, Any]) -> bool:
    """Whether the method's results are here, and all its stages are recorded with ``values``, params.yaml as it is.

    Other reasons for a stage to run again, such as new code, are not considered.
    """
    if not (SUMMARIES / f"{method}.json").is_file():
        return False
    try:
        locked = read_yaml(LOCK)["stages"]
        recorded = {stage: locked[stage]["params"][str(PARAMS)] for stage in _stages(method, values)}
        return all(_at(values, key) == value for params in recorded.values() for key, value in params.items())
    except (UserError, LookupError, TypeError, AttributeError):  # a stage has not run, or a file is damaged
        return False


def _stages(method: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The names of the method's stages under these params."""
    yield f"base@{method}"
    for name, entry in read_yaml(GRAPH)["stages"].items():
        if name.startswith(f"{method}-"):
            over = entry.get("foreach")
            yield from [f"{name}@{item}" for item in _at(values, over[2:-1])] if over else [name]  # ${rise.rows}


def _at(values: Any, key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
