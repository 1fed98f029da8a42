"""Agent-R's rows of the results table, and the score-by-iteration plot."""

from pathlib import Path
from typing import Any

from selfimprove.core.records import read_object
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.rows import BASE
from selfimprove.methods.summary import iteration_curve, summarise


def agent_r_rows(agent_r: AgentRParams) -> dict[str, str]:
    """Row name -> description, in the table's order: base, controls, iterations."""
    rows = {"base": f"warm start on {agent_r.tasks.demonstrations} demonstrations"}
    said = {
        "examples": "more SFT on the demonstrations",
        "good": "the same trees, good trajectories only",
        "direct": "the same trees, direct revision (no judge)",
    }
    for name, control in agent_r.controls.items():
        own = control.data == "examples" and control.source != BASE
        data = f"the examples of {control.source}" if own else said[control.data]
        rows[name] = f"control: {data}, tokens of {control.match}"
    for name, iteration in agent_r.iterations.items():
        judge = "the actor judges" if iteration.convert.judge == "actor" else "a scripted verifier judges"
        rows[name] = f"Agent-R, searched by {iteration.init}; {judge}"
    return rows


def summarise_agent_r(agent_r: AgentRParams, results: Path) -> dict[str, Any]:
    """Metrics of every row, and the paired differences between the last iteration and every other row."""
    rows = agent_r_rows(agent_r)
    # A base that fails no task gives no bad beginnings, and then no row has a revision score.
    revised = any("revision_score" in read_object(results / name / "metrics.json") for name in rows)
    summary = summarise(
        agent_r,
        rows,
        results,
        columns=["score", "success", *(["revision_score"] if revised else [])],
        last=next(reversed(agent_r.iterations)),
        solid=["Agent-R"],
        rates={"steps": "steps", "invalid": "invalid", "repeated": "repeated"},
        note="revision_score: after a given bad beginning; steps: an episode's; invalid, repeated: shares of actions",
    )
    summary["curve"] = iteration_curve(
        agent_r, summary, method="Agent-R", metric="score", x="iteration", y="average final score",
        title="score by iteration", top=100,
    )  # fmt: skip
    return summary
