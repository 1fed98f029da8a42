"""Reflect-RL's rows of the results table, the paired differences, and the curves of its runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.records import read_number
from selfimprove.methods.reflect_rl.logs import Log, Point, curve_rows, read_curve, smoothed, stitch
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.rows import NONE
from selfimprove.methods.summary import summarise

SOLID = "reflect_rl"
"""The row of the method itself."""

_SAID = {
    "rl_only": "RL only, no supervised start",
    "no_reflection": "SFT and RL without reflection",
    "no_negatives": "Reflect-RL, supervised on complete trajectories only",
    "no_curriculum": "Reflect-RL without a curriculum",
    "reflect_rl": "Reflect-RL",
}
_AGENTS = {
    "random": "chance",
    "expert": "the oracle",
    "direct": "a chat model, label at once",
    "react": "a chat model, ReAct",
    "chat": "a chat model, analysis then label",
}


def reflect_rl_rows(params: ReflectRLParams) -> dict[str, str]:
    """Row name -> description, in the table's order: agents, SFT only, controls, runs."""
    rows = {name: f"agent: {_AGENTS[agent.kind]}" for name, agent in params.agents.items()}
    rows |= dict.fromkeys([name for name in params.rows if name in params.models], "SFT only")
    for name, control in params.controls.items():
        rows[name] = f"control: more SFT on {control.data}, tokens of {control.match}"
    for name, run in params.iterations.items():
        reflects = "no reflection" if run.reflector == NONE else f"reflector {run.reflector}"
        rows[name] = f"{_SAID.get(name, 'RL')}; from {run.init}, {reflects}"
    return rows


def main_row(params: ReflectRLParams) -> str:
    """The row that all others are compared with: ``reflect_rl``, or else the last run."""
    return SOLID if SOLID in params.iterations else next(reversed(params.iterations))


def summarise_reflect_rl(params: ReflectRLParams, results: Path) -> dict[str, Any]:
    """Metrics of every row, and the paired differences between Reflect-RL and every other row."""
    summary = summarise(
        params,
        reflect_rl_rows(params),
        results,
        columns=["success", "cost"],
        last=main_row(params),
        solid=[main_row(params)],
        rates={"steps": "steps", "invalid": "invalid"},
        note="n counts tasks, each played several times; steps: an episode's; invalid: share of actions",
    )
    levels = [level for level in summary["rows"][main_row(params)]["metrics"]["levels"] if level]
    summary["levels"] = levels if len(levels) > 1 else []
    found, x = curves(params, results), "step"
    points, note = curve_rows(found), _averaged(params.report.window, [len(curve) for curve in found.values()])
    summary["curves"] = [
        {"x": x, "y": name, "title": f"{name} over RL steps", "note": note, "top": top, "points": _drawn(points, name)}
        for name, top in (("success", 1), ("cost", None), ("loss", None))
    ]
    return summary


def curves(params: ReflectRLParams, results: Path) -> dict[str, list[Point]]:
    """Run -> its curve, stitched to those of the runs it continues and smoothed by a centred mean."""
    found = {}
    for name in params.iterations:
        lineage = params.lineage(name)
        logs = []
        for run in lineage:
            steps = int(read_number(results / run / "train.json", "iterations"))
            points = read_curve(results / run / "curves.csv")
            accumulation = params.iterations[run].rl.gradient_accumulation_steps
            logs.append(Log(points, accumulation, steps if run != name else None))
        found[name] = smoothed(stitch(logs), params.report.window)
    return found


def _averaged(window: int, lengths: Sequence[int]) -> str:
    """What a point of the curves is the mean of; a curve shorter than the window has fewer steps at every point."""
    steps = min(window, max(lengths, default=0))
    at_most = "at most " if min(lengths, default=0) < window else ""
    return f"each point: mean over {at_most}{steps} steps" if steps > 1 else ""


def _drawn(points: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The points of one metric, in the format that ``report.table`` draws."""
    return [
        {"row": point["row"], "step": point["step"], name: point[name], "se": 0.0}
        for point in points
        if point[name] != ""
    ]
