"""inspect_ai reads the logs of ``make inspect``. Runs in the environment of ``make test-backends-inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log

from selfimprove.apps.page.inspect_log import main
from tests.support.sentences import refused_with

pytestmark = pytest.mark.backend

EPISODE: dict[str, Any] = {
    "id": "problem-1", "env": "gsm8k", "query": "1 + 1?", "gold": "2", "seed": "1/1",
    "prompt": [{"role": "user", "content": "1 + 1?"}], "status": "solved",
    "turns": [
        {"model": "student", "attempts": [{"text": "3", "reward": 0.0}], "chosen": 0, "observation": "Try again."},
        {"model": "student", "attempts": [{"text": "2", "reward": 1.0}], "chosen": 0, "observation": "Right."},
    ],
}  # fmt: skip


def test_a_folder_without_episodes_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with refused_with("contains no evaluated episodes; run `make repro` first"):
        main(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inspect_reads_every_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results/rise/iter1"
    folder.mkdir(parents=True)
    told = {"role": "tool", "content": "A calculator is at hand."}  # a role that no method of ours writes
    other = {**EPISODE, "id": "problem-2", "status": "unsolved", "prompt": [told, *EPISODE["prompt"]]}
    lines = [json.dumps(EPISODE), "{torn", "", "3", '{"loss": 1}', json.dumps(other)]
    (folder / "episodes.jsonl").write_text("\n".join(lines))
    main(tmp_path, tmp_path / "out")
    left_out = capsys.readouterr().err
    assert [line for line in range(1, 7) if f"episodes.jsonl, line {line}:" in left_out] == [2, 4, 5]
    log = read_eval_log(str(tmp_path / "out/rise-iter1.eval"))
    assert log.samples is not None
    first, second = log.samples
    assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message.text for message in first.messages] == ["1 + 1?", "3", "Try again.", "2", "Right."]
    assert (second.messages[0].role, second.messages[0].text) == ("user", told["content"])
    assert first.scores is not None
    assert second.scores is not None
    assert (first.scores["solved"].value, second.scores["solved"].value) == ("C", "I")
    assert first.scores["reward"].value == 1.0
