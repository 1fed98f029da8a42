"""Params that reach SPIN's stages (docs/spin.md, S6 and S18)."""

import json
from pathlib import Path

from selfimprove.core.records import read_rows
from tests.pipeline.workbench import Workbench


def test_every_question_is_played_runs_times_with_the_tools_of_self_play(spin_bench: Workbench, tmp_path: Path) -> None:
    change = {
        "spin": {"iterations": {"iter0": {"generate": {"end": 2, "runs": 2}}}, "play_tools": {"use": {"find": "local"}}}
    }
    folder = spin_bench.copy(tmp_path / "bench", change)
    spin_bench.done(folder, "spin.generate", "iter0")
    rows = [row for _, row in read_rows(folder / "data/spin/iter0/episodes.jsonl")]
    assert [row.get("run", 0) for row in rows] == [0, 0, 1, 1]
    assert len({row["seed"] for row in rows}) == 4
    told = json.loads((folder / "results/spin/iter0/generate.json").read_text())
    assert "search" not in told["actions"]  # the tool is called find here
