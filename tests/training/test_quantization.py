"""Settings of quantised weights (docs/reflect-rl.md, L28), which can be checked without a GPU or the package."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from selfimprove.training import loading
from selfimprove.training.config import FinetuneParams


def loaded(quantize: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The quantisation with which ``from_pretrained`` would load the base."""

    class Loading(Exception):
        pass

    def load_whole(*_: Any, **options: Any) -> None:
        raise Loading(options.get("quantization_config"))

    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(loading, "load_config", lambda *_: (LlamaConfig(), None))
    monkeypatch.setattr(loading, "load_whole", load_whole)
    monkeypatch.setattr(loading, "placement", lambda _: {})  # it asks for the GPU
    params = {"device": "cuda", "dtype": "bfloat16", "lora": {"quantize": quantize}}
    with pytest.raises(Loading) as caught:
        loading.load_base(Path("unread"), FinetuneParams.model_validate(params))
    return caught.value.args[0]


def test_four_bits_are_nf4_with_double_quantisation_computed_in_the_training_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = loaded("4bit", monkeypatch)
    assert (made.load_in_4bit, made.bnb_4bit_quant_type, made.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert made.bnb_4bit_compute_dtype == torch.bfloat16


def test_eight_bits_are_requested_as_such_and_none_is_no_quantisation(monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded("8bit", monkeypatch)
    assert (made.load_in_8bit, made.load_in_4bit) == (True, False)
    assert loaded("none", monkeypatch) is None


@pytest.mark.parametrize("quantize", ["8bit", "4bit"])
def test_quantised_weights_are_refused_with_zero_3_and_allowed_with_zero_2(quantize: str) -> None:
    params = {"device": "cuda", "lora": {"quantize": quantize}, "launcher": {"kind": "deepspeed"}}
    with pytest.raises(ValueError, match=f"quantize '{quantize}' does not work with ZeRO-3; set launcher.zero_stage"):
        FinetuneParams.model_validate(params)
    params["launcher"] = {"kind": "deepspeed", "zero_stage": 2}
    assert FinetuneParams.model_validate(params).lora is not None
