"""A row's training, through the stage: which weights it starts from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from selfimprove.core.publish import write_json
from tests.pipeline.workbench import Workbench


@pytest.mark.parametrize("init", ["base", "iter1"])
def test_training_starts_from_the_weights_of_the_row_that_init_names(
    bench: Workbench, tmp_path: Path, init: str
) -> None:
    untrained = {"init": init, "train": {"epochs": 0}}  # publishes the weights that it starts from
    folder = bench.copy(tmp_path / "bench", {"rise": {"rows": {"iter2": untrained}}})
    models, data = folder / "models/rise", folder / "data/rise"
    shutil.copytree(models / "start", models / "iter1")
    shutil.copytree(data / "base/train", data / "iter2/train")
    write_json(folder / "results/rise/iter1/train.json", {"lineage_tokens": 1})
    bench.done(folder, "rise.finetune", "iter2")
    weights = {row: (models / row / "model.safetensors").read_bytes() for row in ("base", "iter1", "iter2")}
    assert [row for row in ("base", "iter1") if weights[row] == weights["iter2"]] == [init]
