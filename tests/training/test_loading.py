"""Models whose attention the chosen implementation would silently replace by another are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Gemma2Config, GPT2Config, Lfm2Config, LlamaConfig, MistralConfig, RwkvConfig, ZambaConfig

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_policy import RL
from selfimprove.models.loading import check_attention
from selfimprove.training.config import FinetuneParams
from selfimprove.training.loading import load_base

SIZES: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8, "vocab_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params", "said"),
    [
        (Gemma2Config(**SIZES), {"max_length": 64}, r"train\.attention: sdpa ignores the soft cap .*; set eager\."),
        (
            MistralConfig(**SIZES, sliding_window=32),
            {"max_length": 64},
            r"train\.max_length: 64 exceeds the sliding window of .* \(32\).*flash_attention_2",
        ),
        (
            Gemma2Config(**SIZES, sliding_window=32),
            {"max_length": 64, "attention": "eager"},
            r"64 exceeds the sliding window of .* \(32\), which is not applied .* with eager",
        ),
        (
            Lfm2Config(**SIZES, layer_types=["conv"]),
            {"max_length": 64},
            r"train\.row_tokens: the layers of .* \(conv\) would carry .* set row_tokens: 1",
        ),
        (RwkvConfig(num_hidden_layers=1), {"max_length": 64}, r"\(rwkv\) would carry"),
        (
            Lfm2Config(**SIZES, layer_types=["conv"]),
            {"max_length": 64, "attention": "segments", "row_tokens": 1},
            r"\(conv\) would carry",
        ),
        (
            GPT2Config(n_positions=32),
            {"max_length": 64},
            r"train\.max_length: 64 exceeds the 32 positions of .*, which can't be scaled; lower it\.",
        ),
        # Accepted: only the weights are missing.
        (GPT2Config(n_positions=64), {"max_length": 64}, "contains no|cannot be loaded"),
        (ZambaConfig(max_position_embeddings=32), {"max_length": 64, "row_tokens": 1}, "contains no|cannot be loaded"),
        (
            Lfm2Config(**SIZES, layer_types=["conv"]),
            {"max_length": 64, "row_tokens": 1},
            "contains no|cannot be loaded",
        ),
        (MistralConfig(**SIZES, sliding_window=64), {"max_length": 64}, "contains no|cannot be loaded"),
        (MistralConfig(**SIZES, sliding_window=None), {"max_length": 64}, "contains no|cannot be loaded"),
        (
            MistralConfig(**SIZES, sliding_window=32),
            {"max_length": 64, "attention": "segments", "dtype": "bfloat16"},
            "contains no|cannot be loaded",
        ),
    ],
)
def test_attention_that_differs_from_the_model_s_is_refused_in_training(
    config: LlamaConfig, params: dict[str, object], said: str, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=said):
        load_base(tmp_path, FinetuneParams.model_validate(params))


def test_the_default_engine_refuses_a_model_with_a_soft_cap_on_attention_scores() -> None:
    with pytest.raises(UserError, match=r"engine: transformers ignores the soft cap .* use engine vllm"):
        check_attention(Path("gemma"), SimpleNamespace(config=Gemma2Config(**SIZES)), 64)
    uncapped = Gemma2Config(**SIZES, attn_logit_softcapping=None)
    check_attention(Path("gemma"), SimpleNamespace(config=uncapped), 64)


def test_messages_about_reinforcement_learning_s_model_name_keys_that_it_has(tmp_path: Path) -> None:
    MistralConfig(**SIZES, sliding_window=32).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^engines\.policy\.context: 64 exceeds .*; lower it\.$"):
        load_base(tmp_path, RLParams().loading(64), RL)
    Lfm2Config(**SIZES, layer_types=["conv"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^rl\.row_tokens: .* set row_tokens: 1"):
        load_base(tmp_path, RLParams().loading(64), RL)
    with pytest.raises(UserError, match=r"contains no|cannot be loaded"):
        load_base(tmp_path, RLParams(row_tokens=1).loading(64), RL)
