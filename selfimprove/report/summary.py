"""Collects the results of one method's rows: what the table prints and ``results/summary.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.outcomes import Outcome, compare
from selfimprove.params_base import Section
from selfimprove.pipeline.rows import group_of, place
from selfimprove.records import read_jsonl


def summarise(
    params: Section,
    rows: Mapping[str, str],
    results: Path,
    *,
    columns: Sequence[str],
    last: str,
    solid: Sequence[str],
    rates: Mapping[str, str],
    note: str = "",
) -> dict[str, Any]:
    """Every row's figures, and the paired differences of row ``last`` to every other one.

    Args:
        params: the method's section.
        rows: name -> what it is, in the table's order.
        results: the folder with one folder a row (train.json) and its place (metrics.json, outcomes.jsonl).
        columns: metrics that the table shows with their standard errors and compares.
        solid: rows that are the method itself, drawn in solid lines.
        rates: metric -> heading of further figures that the table shows without error.
        note: what the headings of ``rates`` mean.
    """
    agents = group_of(params, "agents")  # they only play
    found: dict[str, Any] = {}
    outcomes: dict[str, list[Outcome]] = {}
    for name, text in rows.items():
        folder = results / place(params, name)
        outcomes[name] = read_jsonl(folder / "outcomes.jsonl", Outcome)
        trained = {"real_tokens": 0, "steps": 0} if name in agents else _json(results / name / "train.json")
        found[name] = {
            "what": text,
            "metrics": _json(folder / "metrics.json"),
            "training_tokens": trained["real_tokens"],
            "training_steps": trained.get("steps", trained.get("iterations")),
        }
    return {
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


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
