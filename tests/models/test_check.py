"""The check of a user's model folder on entry: every fault is reported in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfimprove.core.errors import UserError
from selfimprove.models.check import check_base
from selfimprove.models.loading import check_vocabulary

Weights = dict[str, torch.Tensor]
QUERY = "model.layers.0.self_attn.q_proj.weight"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "m"))


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_base(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_complete_model_passes_and_so_does_one_with_tied_weights(tiny: Path, folder: Path) -> None:
    assert check_base(tiny).get_input_embeddings().num_embeddings > 0
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    check_base(folder)


def edit_weights(folder: Path, change: Callable[[Weights], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    (folder / WEIGHTS).unlink()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda weights: weights.pop(QUERY),
            f"the weights lack 1 of the tensors that config.json requires (the first is {QUERY}",
        ),
        (lambda weights: weights.update({QUERY: torch.zeros(8, 32)}), f"{QUERY} has shape [8, 32], but config.json"),
        (lambda weights: weights.update({QUERY: weights[QUERY].int()}), f"{QUERY} holds I32, not floating-point"),
        (lambda weights: weights[QUERY][3].fill_(float("nan")), f"{QUERY} contains NaN or infinity"),
        (lambda weights: weights[QUERY][31].fill_(float("inf")), f"{QUERY} contains NaN or infinity"),
    ],
)
def test_weights_that_do_not_match_the_config_or_are_not_finite_are_reported(
    folder: Path, change: Callable[[Weights], Any], said: str
) -> None:
    edit_weights(folder, change)
    assert said in refused(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_attention_heads": 0}, "the model cannot be loaded"),
        ({"num_hidden_layers": 10**6}, "config.json: num_hidden_layers is 1000000"),
        ({"num_hidden_layers": "two"}, "config.json: num_hidden_layers is 'two'"),
        ({"hidden_size": 64}, "has shape"),
        ({"model_type": "nonsense"}, "the model cannot be loaded"),
    ],
)
def test_an_invalid_config_or_that_of_another_model_is_reported(
    folder: Path, values: dict[str, Any], said: str
) -> None:
    edit_config(folder, **values)
    assert said in refused(folder)


def test_missing_truncated_or_corrupt_files_are_reported(folder: Path) -> None:
    weights = (folder / WEIGHTS).read_bytes()
    for content in (weights[:-100], b"\0" * 4096, b""):
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).write_bytes(content)
        assert f"{WEIGHTS} is not an intact safetensors file" in refused(folder)
    (folder / WEIGHTS).write_bytes(weights)
    (folder / "config.json").write_text("{")
    assert "config.json is not JSON" in refused(folder)
    (folder / "config.json").unlink()
    assert "contains no config.json" in refused(folder)


def test_a_tokenizer_with_more_ids_than_the_model_has_is_refused(tiny: Path) -> None:
    model = check_base(tiny)
    rows = model.get_input_embeddings().num_embeddings
    check_vocabulary(tiny, model, rows)
    with pytest.raises(UserError, match=f"the tokenizer has {rows + 1} ids, but the model only {rows}"):
        check_vocabulary(tiny, model, rows + 1)
