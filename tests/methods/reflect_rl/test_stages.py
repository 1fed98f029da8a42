"""Params that reach Reflect-RL's stages, and the one stage that hides entries (docs/reflect-rl.md, L8 and L32)."""

import ast
from pathlib import Path

from selfimprove.core.records import read_rows
from tests.pipeline.workbench import Workbench
from tests.support.repo_copy import ROOT


def test_a_teacher_plays_at_most_generate_max_turns(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", {"reflect_rl": {"generate": {"max_turns": 2}}})
    reflect_bench.done(folder, "reflect_rl.generate")
    rows = [row for _, row in read_rows(folder / "data/reflect_rl/trajectories.jsonl")]
    assert max(len(row["steps"]) for row in rows) == 2


def test_only_reinforcement_learning_asks_for_the_environment_of_training() -> None:
    """In AutoExplore it hides a random part of the entries."""
    asks = {
        path.stem
        for path in (ROOT / "stages/reflect_rl").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and any(word.arg == "training" for word in call.keywords)
    }
    assert asks == {"reinforce"}
