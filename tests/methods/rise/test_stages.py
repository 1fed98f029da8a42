"""Params of RISE that only the stage scripts read have their effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import Episode, read_jsonl, write_jsonl
from selfimprove.methods.rise.convert import convert
from selfimprove.methods.rise.params import ConvertParams
from tests.methods.rise.episodes import run
from tests.pipeline.workbench import Workbench


@pytest.mark.parametrize(
    ("weights", "raw", "effective"),
    [("converted", 4.4215, 4.4215), ("batch", 4.4215, 1), ("equal", 1, 1)],  # (12.1825 + 1 + 0.0821) / 3
)
def test_a_row_s_weights_are_those_of_convert_or_scaled_to_mean_1_or_all_1(
    bench: Workbench, tmp_path: Path, weights: str, raw: float, effective: float
) -> None:
    row = {"weights": weights, "train": {"epochs": 1}}
    folder = bench.copy(tmp_path / "bench", {"rise": {"rows": {"base": row}}})
    made = convert([run(-1, 0, 1)], ConvertParams(), seed=0).examples
    write_jsonl(folder / "data/rise/base/train/examples.jsonl", made)
    bench.done(folder, "rise.finetune", "base")
    report: dict[str, Any] = json.loads((folder / "results/rise/base/train.json").read_text(encoding="utf-8"))
    assert report["raw_mean_weight"] == pytest.approx(raw, abs=1e-4)
    assert report["mean_weight"] == pytest.approx(effective, abs=1e-4)


def test_evaluation_plays_the_first_tasks_of_its_split_with_or_without_an_oracle(
    bench: Workbench, tmp_path: Path
) -> None:
    changes = {"split": "dev", "limit": 1, "max_turns": 3, "parallel_samples": 2, "oracle": True}
    folder = bench.copy(tmp_path / "bench", {"rise": {"evaluate": changes}})
    bench.done(folder, "rise.evaluate", "base")
    dev = (folder / "data/rise/tasks/dev.jsonl").read_text(encoding="utf-8").splitlines()
    sequential, parallel = read_jsonl(folder / "results/rise/base/episodes.jsonl", Episode)
    assert (sequential.id, parallel.id) == (json.loads(dev[0])["id"],) * 2
    assert len(parallel.turns[0].attempts) == 2
    assert len(sequential.turns) == 3 or sequential.status == "solved"
    metrics = json.loads((folder / "results/rise/base/metrics.json").read_text(encoding="utf-8"))
    assert "p1@t3" in metrics
    assert "m1@t3" not in metrics  # a run with an oracle has no majority over turns
