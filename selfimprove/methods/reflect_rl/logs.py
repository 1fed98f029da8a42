"""Curves of reinforcement learning: success, cost and loss of runs and their ancestors (docs/reflect-rl.md, L48).

If a run starts from another run's weights, its steps continue the other run's count, and only the ancestor's steps
before that point are included. The original divides offsets twice and loses the last part of the ancestors' curves.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.records import LARGEST, load_json
from selfimprove.core.yaml import read_yaml

COLUMNS = ("success", "cost", "loss")
WINDOW = 99
"""The original's window: a point, the 49 before it and the 49 after it."""


class Point(NamedTuple):
    """One iteration. A metric is None if it was not measured (for example, no loss without an update)."""

    step: float
    success: float | None
    cost: float | None
    loss: float | None
    updates: int = 1
    """Number of updates over which ``loss`` is the mean."""


class Log(NamedTuple):
    """One run's points by iteration; ``limit``: the iteration at which its child starts, or None."""

    points: Sequence[Point]
    accumulation: int = 1
    limit: int | None = None


def stitch(lineage: Sequence[Log]) -> list[Point]:
    """One curve of a run and its ancestors, oldest first, over optimiser steps.

    A child's offset is its parent's offset plus the parent's iterations before the child divided by the parent's
    accumulation steps.
    """
    curve, offset = [], 0.0
    for log in lineage:
        kept = [point for point in log.points if log.limit is None or point.step <= log.limit]
        curve += [point._replace(step=offset + point.step / log.accumulation) for point in kept]
        last = log.limit if log.limit is not None else max((point.step for point in log.points), default=0)
        offset += last / log.accumulation
    return curve


def centred_mean(
    values: Sequence[float | None], window: int = WINDOW, counts: Sequence[int] = ()
) -> list[float | None]:
    """The mean of the known values in a ``window`` centred at each index, cut at the ends; None if none is known.

    ``counts``: how many measurements each value is the mean of; by default one.

    Raises:
        UserError: the window is not a positive odd number.
    """
    if window < 1 or window % 2 == 0:
        raise UserError(f"a centred mean needs an odd window, not {window}; set it with --window.")
    half = window // 2
    means: list[float | None] = []
    weighted = list(zip(values, counts or [1] * len(values), strict=True))
    for i in range(len(values)):
        known = [(value, count) for value, count in weighted[max(0, i - half) : i + half + 1] if value is not None]
        total = sum(count for _, count in known)
        means.append(math.fsum(value * count for value, count in known) / total if known else None)
    return means


def smoothed(points: Sequence[Point], window: int = WINDOW) -> list[Point]:
    """The points with every column replaced by its centred mean."""
    counts = {"loss": [point.updates for point in points]}
    columns = [
        centred_mean([getattr(point, name) for point in points], window, counts.get(name, ())) for name in COLUMNS
    ]
    return [Point(point.step, *values) for point, values in zip(points, zip(*columns, strict=True), strict=True)]


def read_curve(path: Path) -> list[Point]:
    """The points of a run's curves.csv (step, success, cost, loss; an empty cell: not measured).

    Raises:
        UserError: the file is missing or not UTF-8 CSV, or a row has no step or a cell that is not a finite number.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; run the stage that trains it.")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row_point(row, f"{path}, line {number}") for number, row in enumerate(csv.DictReader(file), 2)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file ({error}); restore it.") from None


def _row_point(row: Mapping[str, str], place: str) -> Point:
    try:
        cells = [float(text) if (text := row[name]) else None for name in ("step", *COLUMNS)]
    except (KeyError, ValueError):
        cells = [math.nan]
    if not all(cell is None or math.isfinite(cell) for cell in cells):
        raise UserError(f"{place}: step, success, cost or loss is missing or not a finite number; fix it.")
    step, success, cost, loss = cells
    if step is None:
        raise UserError(f"{place}: no step; fix or delete the line.")
    return Point(step, success, cost, loss)


def log_curve(log: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's log.jsonl, read line by line, for a table; a cell is empty if nothing was measured."""
    with log.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            fresh, replayed = row["loss"]
            cells = {"step": row["iter"], "level": row["level"], "success": row["succ"], "cost": row["cost"]}
            cells |= {"loss": fresh, "replay_loss": replayed, "critic_loss": row["critic_loss"]}
            cells |= {"entropy": row["entropy"], "steps": row["steps"]}
            yield {name: "" if cell is None else cell for name, cell in cells.items()}


def curve_rows(curves: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
    """Rows {row, step, success, cost, loss} of all runs, in order, for plots."""
    return [
        {"row": name} | {key: "" if (cell := getattr(point, key)) is None else cell for key in ("step", *COLUMNS)}
        for name, points in curves.items()
        for point in points
    ]


_CHECKPOINT = re.compile(r"checkpoint-(\d+)/?")
_SUPERVISED = "_supervised_pretrain"
"""Suffix of the original's supervised runs, which have no log, so that their folders may be missing."""


def read_original(folder: Path) -> list[Log]:
    """A run of the original's ``results/NNN_rl_finetune``, and its ancestors, oldest first.

    Each has ``setting.yml`` (load_dir, gradient_accumulation_steps) and checkpoint-K/logs.json, which contains only the
    iterations since the previous checkpoint. All logs of a run are read; points of an ancestor are limited to the
    checkpoint that its child was loaded from. If two logs contain the same iteration, the later one wins.

    Raises:
        UserError: a file is missing or malformed, a ``load_dir`` is not a checkpoint, or the runs form a cycle.
    """
    lineage: list[Log] = []
    seen: set[Path] = set()
    here: Path | None = folder
    limit: int | None = None
    while here is not None:
        if here.resolve() in seen:
            raise UserError(f"{here}: the runs' load_dir form a cycle; fix setting.yml.")
        seen.add(here.resolve())
        setting = read_yaml(here / "setting.yml") if (here / "setting.yml").is_file() else {}
        points = {point.step: point for file in _logs(here) for point in original_points(file)}
        if not points:
            raise UserError(f"{here} has no checkpoint-K with a logs.json; name a folder that a training run wrote.")
        lineage.append(Log([points[step] for step in sorted(points)], _accumulation(here, setting), limit))
        loaded = setting.get("load_dir")
        if loaded and any(part.endswith(_SUPERVISED) for part in Path(str(loaded)).parts[-2:]):
            break
        found = _CHECKPOINT.fullmatch(Path(str(loaded)).name) if loaded else None
        if loaded and found is None:
            raise UserError(f"{here}/setting.yml: load_dir {loaded!r} is not a checkpoint-K folder; fix it.")
        parent = None if found is None else _beside(here, Path(str(loaded)).parent)
        if parent is not None and not parent.is_dir():
            raise UserError(
                f"{here}/setting.yml: load_dir {loaded!r} does not exist, nor does {parent}; restore the folder."
            )
        if parent is not None and not _logs(parent):  # the ancestor may be supervised and have no log
            parent = None
        here, limit = parent, int(found[1]) if found else None
    return lineage[::-1]


def _accumulation(run: Path, setting: Mapping[str, Any]) -> int:
    """Number of iterations per optimiser step; 1 by default."""
    steps = setting.get("gradient_accumulation_steps")
    if steps is None:
        return 1
    if type(steps) is not int or steps < 1:
        raise UserError(
            f"{run}/setting.yml: gradient_accumulation_steps must be an integer of at least 1, not {steps!r}; fix it."
        )
    return steps


def _logs(run: Path) -> list[Path]:
    """The logs.json of a run's checkpoints, oldest first."""
    found = {int(m[1]): path for path in run.glob("checkpoint-*") if (m := _CHECKPOINT.fullmatch(path.name))}
    return [file for _, path in sorted(found.items()) if (file := path / "logs.json").is_file()]


def _beside(run: Path, named: Path) -> Path:
    """The parent's folder: ``named`` or, since results are moved as a whole, the folder of that name beside ``run``."""
    return named if named.is_dir() else run.parent / named.name


def original_points(path: Path) -> list[Point]:
    """The points of the original's logs.json: [{iter, loss: [current, replay], critic_loss, cost, succ, log}, …].

    Its iterations count from 0, the points' steps from 1. The loss is the mean over both updates, that on the current
    episodes and that on replayed ones, as in the original's plot. Missing values are skipped; the original counts them
    as 0. Its runs write NaN for a loss that overflowed, which counts as missing.

    Raises:
        UserError: the file is missing or has another format.
    """
    try:
        return [_point(row) for row in load_json(path, lambda _: None)]
    except (ValueError, LookupError, TypeError, OverflowError):
        raise UserError(f"{path}: not a list of iterations with iter, loss, cost and succ; restore it.") from None


def _point(row: Mapping[str, Any]) -> Point:
    updates = row["loss"] if isinstance(row["loss"], list) else [row["loss"]]
    if not updates:
        raise ValueError("no loss")
    losses = [float(loss) for loss in updates if loss is not None]
    success, cost = (None if x is None else float(x) for x in (row["succ"], row["cost"]))
    loss = math.fsum(losses) / len(losses) if losses else None
    point = Point(float(row["iter"] + 1), success, cost, loss, max(1, len(losses)))
    if not all(abs(value) <= LARGEST for value in point if value is not None):
        raise ValueError("not a number whose sums are finite")
    return point
