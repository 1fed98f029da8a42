"""SPIN's rows of the results table, and the plot of exact match by iteration."""

from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import unpaired_difference
from selfimprove.core.records import read_object
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.summary import iteration_curve, summarise


def spin_rows(spin: SpinParams) -> dict[str, str]:
    """Row name -> description, in the table's order: SFT, controls, iterations."""
    rows = {"base": f"SFT on {spin.tasks.train} expert trajectories"}
    for name, control in spin.controls.items():
        what = {
            "examples": "more SFT on the same trajectories",
            "pairs": f"the pairs of {control.source}",
            "outcome": f"DPO on outcome pairs of {control.source}'s runs",
        }
        rows[name] = f"control: {what[control.data]}, tokens of {control.match}"
    for name, iteration in spin.iterations.items():
        rows[name] = f"SPIN, expert against {iteration.init}"
    return rows


def summarise_spin(spin: SpinParams, results: Path) -> dict[str, Any]:
    """Metrics of every row, and the paired differences between the last iteration and every other row.

    Rows that were opponents have ``told_apart``. The last has ``told_apart_fall``, from the first opponent to the last.
    """
    summary = summarise(
        spin,
        spin_rows(spin),
        results,
        columns=["em", "f1"],
        last=next(reversed(spin.iterations)),
        solid=["SPIN"],
        rates={"finished": "finished", "invalid": "invalid", "steps": "steps", "told_apart": "told apart"},
        note="finished: share of episodes; invalid: share of rounds without an action; steps: rounds of an episode; "
        "told apart: share of pairs in which a classifier tells the row's episode from the expert's (chance: .50)",
    )
    summary["curve"] = iteration_curve(
        spin, summary, method="SPIN", metric="em", x="iterations", y="em",
        title="exact match by iterations of self-play", top=1,
    )  # fmt: skip
    told = {iteration.init: _told_apart(results / name / "convert.json") for name, iteration in spin.iterations.items()}
    for row, found in told.items():
        summary["rows"][row]["metrics"]["told_apart"] = found
    if len(told) > 1:
        played = list(told.values())
        fall = unpaired_difference(played[0], played[-1])  # the questions differ
        summary["rows"][summary["last"]]["metrics"]["told_apart_fall"] = fall
        summary["gains"] = ["told_apart_fall"]
    return summary


def _told_apart(file: Path) -> dict[str, float]:
    found = read_object(file).get("told_apart")
    if not isinstance(found, dict):
        raise UserError(f"{file} has no 'told_apart'; restore it, or run `make repro`.")
    return found
