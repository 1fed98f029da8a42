"""Tells which stages dvc.yaml defines and which params DVC records for each, and compares these with params.yaml.

A stage reads params.yaml when it starts, and DVC reads it again when the stage has ended. If the stage's params were
edited in between, DVC would record the new values with outputs of the old ones. The stage fails instead, so that DVC
records nothing and runs it again.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.params import PARAMS_FILE

GRAPH, LOCK = Path("dvc.yaml"), Path("dvc.lock")
SUMMARIES = Path("results/summary")
ABSENT: Any = object()
_EACH = re.compile(r"\$\{([\w.]+)\}")


def check_unedited(stage: str, values: Mapping[str, Any]) -> None:
    """Compare the stage's params with ``values``, the content of params.yaml when the stage started.

    Raises:
        UserError: one of them has another value now.
    """
    try:
        now = read_yaml(PARAMS_FILE)
    except UserError:
        now = {}
    if now == values:
        return
    recorded = dict(planned(read_yaml(GRAPH)["stages"], values))
    edited = [key for key in recorded.get(stage, ()) if value_at(now, key) != value_at(values, key)]
    if edited:
        raise UserError(
            f"{edited[0]} was edited in params.yaml while the stage ran, so its outputs are not recorded; run the same "
            "command again."
        )


def planned(stages: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each stage under these params, such as ``rise-generate@iter1``, and the keys of params.yaml recorded for it.

    ``stages``: those of dvc.yaml.
    """
    for name, stage in stages.items():
        over = _EACH.fullmatch(str(stage.get("foreach", "")))
        body = stage["do"] if over else stage
        entries = value_at(values, over[1]) if over else {"": None}
        for item in entries if isinstance(entries, Mapping) else ():
            keys = [str(key).replace("${key}", str(item)) for key in body.get("params", [])]
            yield (f"{name}@{item}" if item else name), keys


def of_method(stage: str, method: str) -> bool:
    """Whether a stage, such as ``base@rise`` or ``rise-generate@iter1``, belongs to the method alone."""
    return stage.startswith(f"{method}-") or stage == f"base@{method}"


def has_results(method: str, values: Mapping[str, Any]) -> bool:
    """Whether the method's results are here, and all its stages are recorded with ``values``, params.yaml as it is.

    Other reasons for a stage to run again, such as new code, are not considered.
    """
    if not (SUMMARIES / f"{method}.json").is_file():
        return False
    try:
        return records(read_yaml(LOCK), method, values)
    except UserError:  # dvc.lock is missing or damaged
        return False


def records(lock: Any, method: str, values: Mapping[str, Any]) -> bool:
    """Whether ``lock``, the content of a dvc.lock, records all stages of the method with these params."""
    try:
        stages = [one for one, _ in planned(read_yaml(GRAPH)["stages"], values)]
        own = [one for one in stages if of_method(one, method)]
        recorded = [entry for one in own for entry in lock["stages"][one]["params"][str(PARAMS_FILE)].items()]
        return all(value_at(values, key) == value for key, value in recorded)
    except (LookupError, TypeError, AttributeError):  # a stage has not run, or the lock is damaged
        return False


def value_at(values: Any, key: str) -> Any:
    """The value at a dotted key, whose parts are keys of mappings or places in lists; ``ABSENT`` if there is none."""
    for part in key.split("."):
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return ABSENT
    return values
