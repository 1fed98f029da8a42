"""Agent-R's rows of the results table, and the score-by-iteration plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.report.summary import summarise


def agent_r_rows(agent_r: AgentRParams) -> dict[str, str]:
    """Row name -> what it is, in the table's order: base, controls, iterations."""
    rows = {"base": f"warm start on {agent_r.tasks.demonstrations} demonstrations"}
    said = {
        "demonstrations": "more SFT on the demonstrations",
        "good": "the same trees, good trajectories only",
        "direct": "the same trees, direct revision (no judge)",
    }
    for name, control in agent_r.controls.items():
        rows[name] = f"control: {said[control.data]}, tokens of {control.match}"
    for name, iteration in agent_r.iterations.items():
        judge = "the actor judges" if iteration.convert.judge == "actor" else "a scripted verifier judges"
        rows[name] = f"Agent-R, searched by {iteration.init}; {judge}"
    return rows


def summarise_agent_r(agent_r: AgentRParams, results: Path) -> dict[str, Any]:
    """Every row's figures, and the paired differences of the last iteration to every other row."""
    summary = summarise(
        agent_r,
        agent_r_rows(agent_r),
        results,
        columns=["score", "success", *(["revision_score"] if agent_r.evaluate.revision else [])],
        last=next(reversed(agent_r.iterations)),
        solid=["Agent-R"],
        rates={"steps": "steps", "invalid": "invalid", "repeated": "repeated"},
        note="revision_score: after a given bad beginning; steps: an episode's; invalid, repeated: shares of actions",
    )
    summary["curve"] = {
        "x": "iteration",
        "y": "average final score",
        "title": "score by iteration",
        "top": 100,
        "points": iteration_rows(agent_r, summary),
    }
    return summary


def iteration_rows(agent_r: AgentRParams, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows {row, iteration, score, se}: Agent-R from base (0) on; a control stands at the iteration that it matches."""
    number = {"base": 0, **{name: len(agent_r.lineage(name)) for name in agent_r.iterations}}
    number |= {name: number[control.match] for name, control in agent_r.controls.items()}
    points = []
    for name in summary["order"]:
        row = "Agent-R" if name == "base" or name in agent_r.iterations else name
        figure = summary["rows"][name]["metrics"]["score"]
        points.append({"row": row, "iteration": number[name], "score": figure["mean"], "se": figure["se"]})
    return points
