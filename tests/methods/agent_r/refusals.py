"""Run Agent-R's real stages on bad input: the error of a stage that is refused, the warnings of one that succeeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipeline.workbench import Workbench

TREES = "data/agent_r/iter2/trees.jsonl"
PANEL = "data/agent_r/tasks/train.jsonl"


def refused(bench: Workbench, folder: Path, stage: str, item: str = "", **more: Any) -> str:
    """The one-sentence error with which a stage ends. Everything published before is unchanged."""
    return bench.refused(folder, f"agent_r.{stage}", item, **more)


def done(bench: Workbench, folder: Path, stage: str, item: str = "") -> list[str]:
    """Run a stage that succeeds; its messages about blocked episodes and diverged replays."""
    return [line for line in bench.done(folder, f"agent_r.{stage}", item) if "blocked" in line or "replays" in line]


def with_env(**env: Any) -> dict[str, Any]:
    return {"agent_r": {"env": env}}
