"""A row trained with LoRA, through the stages: only the adapter is published; the full weights are in scratch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pipeline.workbench import Workbench, published

pytestmark = pytest.mark.slow


def test_a_lora_row_publishes_its_adapter_and_later_stages_read_its_merged_weights(
    bench: Workbench, tmp_path: Path
) -> None:
    folder = bench.copy(
        tmp_path, {"rise": {"rows": {"base": {"train": {"lora": {"rank": 2, "targets": ["q_proj", "v_proj"]}}}}}}
    )
    assert bench.forks.run(folder, "rise.finetune", "base").code == 0
    row, base = folder / "models" / "rise" / "base", folder / "models" / "rise" / "start"
    weights = {name.name: name.stat().st_size for name in row.glob("*.safetensors")}
    assert list(weights) == ["adapter_model.safetensors"]
    assert weights["adapter_model.safetensors"] < 0.1 * (base / "model.safetensors").stat().st_size
    assert json.loads((row / "adapter_base.json").read_text())["base"] == "models/rise/start"
    ran = bench.forks.run(folder, "rise.evaluate", "base")
    assert ran.code == 0, ran.stderr
    assert len([one for one in (folder / ".scratch" / "merged").iterdir() if one.is_dir()]) == 1
    first = published(folder)
    shutil.rmtree(folder / ".scratch")
    assert bench.forks.run(folder, "rise.evaluate", "base").code == 0  # merged again, with the same bytes
    assert published(folder) == first
    (base / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:-1] + b"!")
    shutil.rmtree(folder / ".scratch" / "stages")
    ran = bench.forks.run(folder, "rise.evaluate", "base")
    assert (ran.code, len(ran.lines)) == (2, 1)
    assert "models/rise/base is an adapter of models/rise/start, whose weights have changed since" in ran.stderr
