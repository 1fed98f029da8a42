"""If the user's own model replaces the small one, a warning lists the settings that are tuned for the small one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from selfimprove.engines.cpu.batching import stored_parameters
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.small_defaults import small_settings
from tests.support.profiles import NAMES, profile


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"a": np.zeros((3000, 1000), np.float16), "b": np.zeros(4, np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"c": np.zeros((3000, 1000), np.float16)}, tmp_path / "model-2.safetensors", {"format": "pt"})
    return tmp_path


def test_parameters_are_counted_in_all_files_of_a_folder(model: Path) -> None:
    assert stored_parameters(model) == 6_000_004
    assert stored_parameters(model / "nothing") == 0


def test_a_larger_model_with_the_default_settings_causes_a_warning_that_lists_their_keys(model: Path) -> None:
    values = profile("default")
    values["base"]["rise"]["model"] = str(model)
    said = small_settings(values, "rise") or ""
    assert said.startswith(f"WARNING: base.rise.model is {model} (6 million parameters)")
    for key in ("base.train.lr 0.0015", "base.train.max_length 352", "iter2.train.lr 0.001", "more_sft.train.lr 0.001"):
        assert f"rise.rows.{key}" in said
    assert small_settings(values, "spin") is None


def test_a_model_as_small_as_the_default_causes_no_warning(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    values = profile("default")
    values["base"]["spin"]["model"] = str(model)
    assert small_settings(values, "spin") is None


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_of_the_repository_causes_the_warning(name: str) -> None:
    values = profile(name)
    assert [said for method in METHODS if (said := small_settings(values, method))] == []
