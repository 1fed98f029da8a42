"""Collects every row's results into one summary: what the table prints and ``results/summary.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.methods.rise.metrics import Outcome, compare
from selfimprove.methods.rise.params import RiseParams
from selfimprove.records import read_jsonl

HEADLINE = ("m1@t1", "m5@t1", "m1@t5", "p1@t5")
"""The columns of the paper's tables; at other turn counts or sample counts the names follow those."""


def rise_rows(rise: RiseParams) -> dict[str, str]:
    """Row name -> what it is, in the table's order: base, controls, iterations."""
    rows = {"base": "first SFT on demonstrations"}
    said = {
        "demonstrations": "more SFT on the demonstrations",
        "single_turn": "single-turn SFT on the same correct answers",
        "unweighted": "the same converted data, unweighted",
    }
    for name, control in rise.controls.items():
        rows[name] = f"control: {said[control.data]}, tokens of {control.match}"
    for name, iteration in rise.iterations.items():
        models = iteration.generate.models
        kind = "self-distilled" if set(models) == {"student"} else f"distilled from {models[-1]}"
        rows[name] = f"RISE from {iteration.init}, {kind}"
    return rows


def headline(rise: RiseParams) -> tuple[str, ...]:
    """The four columns for the params' turn and sample counts."""
    turns, samples = rise.evaluate.max_turns, rise.evaluate.parallel_samples
    last = [] if rise.evaluate.oracle else [f"m1@t{turns}"]
    wanted = ["m1@t1", *([f"m{samples}@t1"] if samples > 1 else []), *(last if turns > 1 else [])]
    return (*wanted, *([f"p1@t{turns}"] if turns > 1 else []))


def summarise_rise(rise: RiseParams, results: Path) -> dict[str, Any]:
    """Every row's figures and gains over turns, and the paired differences of the last iteration to every other row.

    ``results``: the folder with one folder a row (metrics.json, train.json, outcomes.jsonl).
    """
    rows: dict[str, Any] = {}
    outcomes: dict[str, list[Outcome]] = {}
    for name, text in rise_rows(rise).items():
        folder = results / name
        outcomes[name] = read_jsonl(folder / "outcomes.jsonl", Outcome)
        trained = _json(folder / "train.json")
        rows[name] = {
            "what": text,
            "metrics": _json(folder / "metrics.json"),
            "training_tokens": trained["real_tokens"],
            "training_steps": trained["steps"],
        }
    last = next(reversed(rise.iterations))
    against = {name: compare(outcomes[last], other) for name, other in outcomes.items() if name != last}
    return {"columns": list(headline(rise)), "order": list(rows), "rows": rows, "last": last, "last_minus": against}


def turn_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows {row, turn, accuracy, se} of the accuracy-by-turn plot, all rows in one table."""
    table = []
    for name in summary["order"]:
        row = summary["rows"][name]
        for key, figure in row["metrics"].items():
            if key.startswith("accuracy@t"):
                turn = int(key.removeprefix("accuracy@t"))
                table.append({"row": name, "turn": turn, "accuracy": figure["mean"], "se": figure["se"]})
    return table


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
