"""RISE's rows of the results table, and the accuracy-by-turn plot."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.methods.rise.metrics import by_turn
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rows import BASE
from selfimprove.methods.summary import summarise


def rise_rows(rise: RiseParams) -> dict[str, str]:
    """Row name -> description, in the table's order: base, controls, iterations."""
    rows = {"base": "first SFT on demonstrations"}
    said = {
        "examples": "more SFT on the demonstrations",
        "single_turn": "single-turn SFT on the same correct answers",
        "collected": "the same converted data",
    }
    for name, control in rise.controls.items():
        data = said[control.data] if control.source == BASE or control.data != "examples" else said["collected"]
        how = {"converted": "", "batch": ", weights of mean 1", "equal": ", unweighted"}[control.weights]
        rows[name] = f"control: {data}{how}, tokens of {control.match}"
    for name, iteration in rise.iterations.items():
        models = iteration.generate.models
        kind = "self-distilled" if set(models) == {"student"} else f"distilled from {models[-1]}"
        rows[name] = f"RISE from {iteration.init}, {kind}"
    return rows


def headline(rise: RiseParams) -> tuple[str, ...]:
    """The paper's four columns, named after the configured numbers of turns and samples, and p{k}@t1 beside p1@t{k}."""
    turns, samples = rise.evaluate.max_turns, rise.evaluate.parallel_samples
    together = [f"m{samples}@t1", f"p{samples}@t1"] if samples > 1 else []
    majority = [] if rise.evaluate.oracle else [f"m1@t{turns}"]
    one_by_one = [*majority, f"p1@t{turns}"] if turns > 1 else []
    return ("m1@t1", *together[:1], *one_by_one, *together[1:])


def summarise_rise(rise: RiseParams, results: Path) -> dict[str, Any]:
    """Metrics and gains over turns of every row, and paired differences between the last iteration and other rows."""
    summary = summarise(
        rise,
        rise_rows(rise),
        results,
        columns=headline(rise),
        last=next(reversed(rise.iterations)),
        solid=list(rise.iterations),
        rates={"right_to_wrong": "r→w", "wrong_to_right": "w→r"},
        note=f"r→w, w→r: right attempts followed by a wrong one, and back{_window(rise)}",
    )
    first = summary["rows"]["base"]["metrics"]
    columns: list[str] = summary["columns"]
    best = (name for start in ("m1@t", "p1@t", "m") for name in columns if name.startswith(start))
    summary["headline"] = next((name for name in best if name != "m1@t1"), "m1@t1")
    # p1@tk is at least m1@t1 by definition; the fair comparison, if available, is with k independent attempts.
    fair = [name for name in first if re.fullmatch(r"p1@t(\d+)-p\1@t1", name)]
    gains = [name for name in first if name.endswith("-m1@t1")]
    summary["gains"] = [name for name in gains if not (fair and name.startswith("p"))] + fair
    summary["curve"] = {
        "x": "turn",
        "y": "solved so far" if rise.evaluate.oracle else "attempt correct",
        "title": "solved by turn with an oracle" if rise.evaluate.oracle else "accuracy by turn",
        "top": 1,
        "points": turn_rows(summary),
    }
    return summary


def _window(rise: RiseParams) -> str:
    """Describes what the evaluation's context window hides (the same for every row); empty if it hides nothing."""
    turns, window = rise.evaluate.max_turns, rise.evaluate.context_window
    if window >= turns:
        return ""
    return f"; a prompt shows at most {window - 1} earlier attempt{'s' * (window > 2)} (context_window {window})"


def turn_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows {row, turn, accuracy, se} of the accuracy-by-turn plot for all table rows (``metrics.by_turn``)."""
    return [
        {"row": name, "turn": turn, "accuracy": metric["mean"], "se": metric["se"]}
        for name in summary["order"]
        for turn, metric in enumerate(by_turn(summary["rows"][name]["metrics"]), start=1)
    ]
