"""Settings of quantised weights (docs/reflect-rl.md, L28), which can be checked without a GPU or the package."""

import pytest

from selfimprove.training import loading
from selfimprove.training.config import FinetuneParams, LoraConfig


def test_four_bits_are_nf4_with_double_quantisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: object())
    made = loading._quantization(LoraConfig(quantize="4bit"), FinetuneParams(dtype="bfloat16"))
    assert (made.load_in_4bit, made.bnb_4bit_quant_type, made.bnb_4bit_use_double_quant) == (True, "nf4", True)
