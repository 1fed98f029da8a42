"""Running Agent-R's real stages on bad input: what a stage that is refused says, and one that ends well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipeline.workbench import Workbench

TREES = "data/agent_r/iter2/trees.jsonl"
PANEL = "data/agent_r/tasks/train.jsonl"


def refused(bench: Workbench, folder: Path, stage: str, item: str = "", **more: Any) -> str:
    """The one sentence with which a stage ends; whatever was published before is as it was."""
    return bench.refused(folder, f"agent_r.{stage}", item, **more)


def done(bench: Workbench, folder: Path, stage: str, item: str = "") -> list[str]:
    """Run a stage that ends well; what it said of episodes that are blocked or mix worlds."""
    return [line for line in bench.done(folder, f"agent_r.{stage}", item) if "blocked" in line or "replays" in line]


def with_env(**env: Any) -> dict[str, Any]:
    return {"agent_r": {"env": env}}
