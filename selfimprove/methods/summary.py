"""Collects the results of one method's rows for its results table and ``results/summary.json``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Estimate, Outcome, average, compare
from selfimprove.core.records import read_jsonl, read_number, read_object
from selfimprove.methods.omissions import omissions
from selfimprove.methods.rows import Iterated


def summarise(
    params: Any,
    rows: Mapping[str, str],
    results: Path,
    *,
    columns: Sequence[str],
    last: str,
    solid: Sequence[str],
    rates: Mapping[str, str],
    note: str = "",
) -> dict[str, Any]:
    """Metrics of every row, and the paired differences between row ``last`` and every other row.

    Args:
        params: the method's section.
        rows: name -> description, in the table's order.
        results: contains one folder per row (metrics.json, outcomes.jsonl and, for trained rows, train.json).
        columns: metrics that the table shows with standard errors and compares.
        solid: rows of the method itself, drawn as solid lines.
        rates: metric -> heading of further metrics that the table shows without standard errors.
        note: explanation of the headings in ``rates``.

    Returns:
        The summary. ``unlike_last``, if present, maps each control that is not matched to the last iteration to the
        iteration whose token count it was matched to.
    """
    agents = getattr(params, "agents", {})  # these rows are not trained
    found: dict[str, Any] = {}
    outcomes: dict[str, list[Outcome]] = {}
    for name, text in rows.items():
        folder = results / name
        outcomes[name] = read_jsonl(folder / "outcomes.jsonl", Outcome)
        trained = {"steps": 0} if name in agents else read_object(folder / "train.json")
        metrics = read_object(folder / "metrics.json")
        if lacking := [column for column in columns if column not in metrics]:
            raise UserError(f"{folder / 'metrics.json'} has no {lacking[0]!r}; restore it, or run `make repro`.")
        found[name] = {
            "what": text,
            "metrics": metrics,
            "training_tokens": 0 if name in agents else read_number(folder / "train.json", "real_tokens"),
            "training_steps": trained.get("steps", trained.get("iterations")),
            "omissions": omissions(folder),
        }
        if mixed := params.env.mixed():
            names = [one.world_name for one in mixed]
            found[name]["environments"] = by_environment(outcomes[name], names)
    unlike = {name: one.match for name, one in getattr(params, "controls", {}).items() if one.match != last}
    return {
        **({"unlike_last": unlike} if unlike else {}),
        "columns": list(columns),
        "gains": [],
        "rates": dict(rates),
        "note": note,
        "order": list(found),
        "solid": list(solid),
        "rows": found,
        "last": last,
        "last_minus": {name: compare(outcomes[last], other) for name, other in outcomes.items() if name != last},
    }


def by_environment(outcomes: Sequence[Outcome], names: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    """Metrics by environment of a mixture, in which task ``i`` belongs to environment ``i % len(names)``."""
    of: dict[str, list[Outcome]] = {name: [] for name in names}
    mixture = "+".join(names)
    for outcome in outcomes:
        task = re.match(rf"{re.escape(mixture)}-(\d+)", outcome.id)
        assert task is not None, outcome.id
        of[names[int(task[1]) % len(names)]].append(outcome)
    return {name: average(mine) for name, mine in of.items()}


def headline(summary: Mapping[str, Any]) -> str:
    """The metric by which a method's rows are ranked."""
    return summary.get("headline", next(iter(summary["columns"]), ""))


def headline_metrics(method: str, summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """A method's metrics for DVC: the headline metric of the last row, and its paired difference to a control.

    The control is ``more_sft`` if that row exists, otherwise the table's first row. Errors are standard errors.
    """
    metric, rows = headline(summary), summary["order"]
    mine = summary["rows"][summary["last"]]["metrics"][metric]
    against = "more_sft" if "more_sft" in rows else rows[0]
    shown = {metric: mine["mean"], f"{metric} error": mine["se"]}
    if against in summary["last_minus"]:
        gain = summary["last_minus"][against][metric]
        shown |= {f"minus {against}": gain["mean"], f"minus {against} error": gain["se"]}
    return {method: shown}


def iteration_curve(
    params: Iterated, summary: Mapping[str, Any], *, method: str, metric: str, x: str, y: str, title: str, top: float
) -> dict[str, Any]:
    """The plot of a metric by iteration.

    Its points are rows {row, ``x``, ``metric``, se}. The method's line starts at the base (0); a control is placed at
    the iteration that it matches. ``y`` is the axis label and ``top`` the upper limit of the y axis.
    """
    number = {"base": 0, **{name: len(params.lineage(name)) for name in params.iterations}}
    number |= {name: number[control.match] for name, control in params.controls.items()}
    points = []
    for name in summary["order"]:
        row = method if name == "base" or name in params.iterations else name
        measured = summary["rows"][name]["metrics"][metric]
        points.append({"row": row, x: number[name], metric: measured["mean"], "se": measured["se"]})
    return {"x": x, "y": y, "title": title, "top": top, "points": points}
