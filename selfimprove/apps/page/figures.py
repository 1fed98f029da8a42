"""The charts of a run's pages."""

import re
from collections import Counter
from collections.abc import Set
from typing import Any

from selfimprove.apps.page.library import SECOND, Library
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.charts import Spec, counts_chart, curve_chart, curves_of, lines_chart, rows_chart

Drawn = list[tuple[str, str, Spec]]
"""(key, one-sentence description, specification) of each chart."""

LETTERS = {"s": "solved", "u": "not solved", "b": "blocked"}
BINS = 8
REINFORCED = " during reinforcement learning"
NAMES = {"loss": "training loss", f"steps{REINFORCED}": f"decisions{REINFORCED}"}
"""Titles of columns whose own name would mislead; a chart of "steps" by step would be a riddle."""

LOSSES = {
    "rise": "larger for rows trained with reward weights, which scale it",
    "spin": "rows trained on demonstrations and rows trained on pairs have different losses",
}
"""Why the training losses of a method's rows are not comparable."""


def rows(run: Run, method: str) -> Spec | None:
    """Every row's headline metric; None if no row has been measured yet."""
    summary = run.summaries[method]
    return rows_chart(method, summary) if summary["order"] and summary["columns"] else None


def sections(run: Run, method: str, library: Library | None) -> list[tuple[str, Drawn]]:
    """(heading, charts) of the sections of a method's page."""
    found = [
        ("Metrics", _metrics(run, method)),
        ("Training", _training(run, method)),
        ("Evaluation episodes", _distributions(method, library) if library else []),
    ]
    return [(heading, drawn) for heading, drawn in found if drawn]


def _metrics(run: Run, method: str) -> Drawn:
    summary = run.summaries[method]
    drawn: Drawn = []
    if (chart := rows(run, method)) is not None:
        drawn.append(("rows", "Headline metric of every row with its standard error", chart))
    for number, curve in enumerate(curves_of(summary)):
        text = f"{curve['title']}, one line per row, with standard errors"
        drawn.append((f"curve-{number}", text, curve_chart(method, curve, summary["solid"])))
    return drawn


def _training(run: Run, method: str) -> Drawn:
    """Columns of loss.csv and curves.csv by step, with all rows overlaid."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in run.rows(method):
        folder = run.root / "results" / method / row
        for file in ("loss.csv", "curves.csv"):
            for point in run.table(folder / file):
                for column, value in point.items():
                    if column not in ("step", "level") and "step" in point:
                        name = column if file == "loss.csv" else f"{column}{REINFORCED}"
                        series.setdefault(name, {}).setdefault(row, []).append((point["step"], value))
    drawn: Drawn = []
    for name, rows_of in series.items():
        title = NAMES.get(name, name if name.endswith(REINFORCED) else f"{name} during training")
        title = title[0].upper() + title[1:].replace("_", " ")
        y = NAMES.get(name, name).removesuffix(REINFORCED).replace("_", " ")
        chart = lines_chart(title, method, rows_of, y, LOSSES.get(method, "") if name == "loss" else "")
        if chart is not None:
            drawn.append(
                (f"train-{re.sub(r'[^a-z0-9]+', '-', name.lower())}", f"{title} by step, one line per row", chart)
            )
    return drawn


def _distributions(method: str, library: Library) -> Drawn:
    sets = [one for one in library.sets if one["phase"] == "evaluation" and one["size"]]
    of_run = next((f", {first}" for run, first in SECOND.items() if run in library.runs), "")
    second = {library.runs[run] for run in SECOND if run in library.runs}
    wanted = [
        ("result", "s", "Episode outcomes"),
        ("turns", "n", "Turns per episode"),
        ("invalid actions", "x", "Invalid actions per episode"),
        ("misread maps", "z", "Reflections per episode that misread the map"),
        ("reward", "r", "Reward per episode"),
        ("tokens", "w", "Tokens generated per episode"),
    ]
    drawn: Drawn = []
    for x, key, title in wanted:
        values = library.lengths if key == "w" else {one["row"]: _column(one, key, second) for one in sets}
        named = [value for column in values.values() for value in column]
        if len(set(named)) < 2:
            continue
        order, label = _bins(named, key)
        series = {row: Counter(label(value) for value in column) for row, column in values.items()}
        chart = counts_chart(f"{title}{of_run}", method, series, x, order)
        if chart is not None:
            drawn.append((f"spread-{key}", f"{title}{of_run}, as shares of each row's episodes", chart))
    return drawn


def _column(one: dict[str, Any], key: str, without: Set[int]) -> list[Any]:
    """A set's values of a property, without those of the episodes of some runs."""

    def values(name: str) -> list[Any]:
        column = one[name]
        return list(column) if isinstance(column, str | list) else [column] * one["size"]

    pairs = zip(values(key), values("u"), strict=True)
    return [value for value, of in pairs if value is not None and of not in without]


def _bins(values: list[Any], key: str) -> tuple[list[str], Any]:
    """The categories in order, and a function that returns a value's category."""
    if key == "s":
        return list(LETTERS.values()), lambda value: LETTERS.get(value, "other")
    scale = 1000 if key == "r" else 1
    distinct = sorted(set(values))
    if len(distinct) <= BINS + 4:
        return [f"{value / scale:g}" for value in distinct], lambda value: f"{value / scale:g}"
    low, high = distinct[0], distinct[-1]
    step = (high - low) // BINS + 1  # all values are integers; rewards are in thousandths

    def label(value: int) -> str:
        first = low + (value - low) // step * step
        return " to ".join(f"{end / scale:g}" if key == "r" else f"{end:,}" for end in (first, first + step - 1))

    return [label(first) for first in range(low, high + 1, step)], label
