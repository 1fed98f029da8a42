"""RISE and SPIN on environments that are not their papers', from the data to the report."""

from __future__ import annotations

import json
from pathlib import Path

from tests.methods.cells import overlay, play_cell
from tests.pipeline.workbench import Forks


def test_rise_plans_in_textcraft(forks: Forks, tmp_path: Path) -> None:
    summary = play_cell(forks, tmp_path, "rise", overlay("rise", {"name": "textcraft"}))
    assert summary["order"] == ["base", "iter1"]
    episodes = [json.loads(line) for line in (tmp_path / "data/rise/iter1/episodes.jsonl").read_text().splitlines()]
    assert {one["env"] for one in episodes} == {"textcraft"}
    second = episodes[0]["turns"][1]
    assert second["model"] == "teacher"
    assert second["attempts"][0]["reward"] == 1
    assert episodes[0]["turns"][0]["observation"].endswith("\nThe answer is incorrect. Please try again.")
