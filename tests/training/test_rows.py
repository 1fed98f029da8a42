"""The model's inputs for packed rows: the lengths that FlashAttention needs are prepared with the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import MicroBatch
from selfimprove.training.rows import FLASH_INPUTS, MODEL_INPUTS, render

MODELS = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
}  # fmt: skip
EXAMPLES = [
    EncodedExample(list(range(start, start + n)), [0.0] + [1.0] * (n - 1)) for start, n in enumerate((7, 12, 5))
]
MICRO: MicroBatch = ((1,), (0, 2))


class _Recorder:
    """Attends based only on the given lengths, like FlashAttention's kernel for sequences of varying lengths."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []

    def __call__(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, scaling: float | None = None, **given: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        assert attention_mask is None
        self.received.append({name: given.get(name) for name in FLASH_INPUTS})
        lengths = given["cu_seq_lens_q"].diff().tolist()
        parts = [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
            for q, k, v in zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
        ]
        return torch.cat(parts, dim=2).transpose(1, 2), None


@pytest.fixture
def recorder() -> _Recorder:
    """An attention registered as ``recorder``."""
    one = _Recorder()
    AttentionInterface.register("recorder", one)
    return one


def logits(model: Any, attention: str, inputs: dict[str, Any]) -> torch.Tensor:
    model.set_attn_implementation(attention)
    with torch.no_grad():
        return model(**{key: inputs[key] for key in MODEL_INPUTS if key in inputs}, use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_gets_the_examples_lengths_and_attends_only_within_examples(name: str, recorder: _Recorder) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    scales = dict.fromkeys(range(3), 1.0)
    flash = render(MICRO, EXAMPLES, scales, 0, "flash_attention_2")
    together = logits(model, "recorder", flash)
    assert len(recorder.received) == 2
    for received in recorder.received:
        for bounds in (received["cu_seq_lens_q"], received["cu_seq_lens_k"]):
            assert bounds.dtype == torch.int32  # what the kernel takes
            assert bounds.tolist() == [0, 12, 19, 24]
        assert received["max_length_q"] == received["max_length_k"] == 12
        assert isinstance(received["max_length_q"], int)  # a tensor would have to be fetched from the GPU
    masked = render(MICRO, EXAMPLES, scales, 0, "sdpa")
    apart = logits(model, "sdpa", masked)
    assert apart.shape[:2] == (2, 12)  # both rows are full here
    assert torch.allclose(together[0], apart.flatten(0, 1), atol=1e-5)


def test_a_process_without_examples_gets_one_token_of_padding(recorder: _Recorder) -> None:
    empty = render((), EXAMPLES, {}, 0, "flash_attention_2")
    assert empty["cu_seq_lens_q"].tolist() == [0, 1]
    assert logits(MODELS["llama"]().eval(), "recorder", empty).shape == (1, 1, 50)


def test_only_rows_that_examples_share_need_a_mask() -> None:
    """Without one attention is faster. A position that restarts would make transformers build one."""
    scales = dict.fromkeys(range(3), 1.0)
    assert "attention_mask" in render(MICRO, EXAMPLES, scales, 0)
    apart = render(((1,), (0,), (2,)), EXAMPLES, scales, 0)
    assert "attention_mask" not in apart
    assert apart["position_ids"].tolist() == [list(range(12))] * 3
