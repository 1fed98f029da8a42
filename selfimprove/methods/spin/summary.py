"""SPIN's rows of the results table, and the plot of exact match by iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.summary import iteration_curve, summarise


def spin_rows(spin: SpinParams) -> dict[str, str]:
    """Row name -> what it is, in the table's order: SFT, controls, iterations."""
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
    """Every row's metrics, and the paired differences of the last iteration to every other row."""
    summary = summarise(
        spin,
        spin_rows(spin),
        results,
        columns=["em", "f1"],
        last=next(reversed(spin.iterations)),
        solid=["SPIN"],
        rates={"finished": "finished", "invalid": "invalid", "steps": "steps"},
        note="finished: share of episodes; invalid: share of rounds without an action; steps: rounds of an episode",
    )
    summary["curve"] = iteration_curve(
        spin, summary, method="SPIN", metric="em", x="rounds", y="em",
        title="exact match by rounds of self-play", top=1,
    )  # fmt: skip
    return summary
