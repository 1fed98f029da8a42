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


def test_spin_plays_in_textcraft(forks: Forks, tmp_path: Path) -> None:
    summary = play_cell(forks, tmp_path, "spin", overlay("spin", {"name": "textcraft"}))
    assert summary["order"] == ["base", "iter0"]
    (pair, *_) = [json.loads(line) for line in (tmp_path / "data/spin/iter0/train/own.jsonl").read_text().splitlines()]
    real = "".join(message["content"] for message in pair["real"])
    assert "\nAction: craft 1 " in real or "\nAction: get 1 " in real
    assert "\nObservation: Got " in real
    episodes = [json.loads(line) for line in (tmp_path / "results/spin/iter0/episodes.jsonl").read_text().splitlines()]
    assert {one["task"] for one in episodes} == {"textcraft"}
    assert all(one["reward"] in (0, 1) for one in episodes)


def test_plain_spin_answers_word_problems(forks: Forks, tmp_path: Path) -> None:
    params = overlay("spin", {"name": "gsm8k"}, prompt={"format": "reply"})
    params["tokenizer"] = {"spin": {"template": "plain"}}
    summary = play_cell(forks, tmp_path, "spin", params)
    assert summary["order"] == ["base", "iter0"]
    (pair, *_) = [json.loads(line) for line in (tmp_path / "data/spin/iter0/train/own.jsonl").read_text().splitlines()]
    (answer,) = pair["real"]
    assert "The answer is \\boxed{" in answer["content"]
