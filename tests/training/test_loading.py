"""Models whose attention the chosen implementation would silently replace by another are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CodeGenConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    RwkvConfig,
    ZambaConfig,
)

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_policy import RL
from selfimprove.models.loading import check_attention
from selfimprove.training.config import FinetuneParams
from selfimprove.training.loading import load_base, load_config

SIZES: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8, "vocab_size": 16,
}  # fmt: skip

ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
YARN, DYNAMIC = {**ROPE, "rope_type": "yarn"}, {**ROPE, "rope_type": "dynamic"}
LLAMA3 = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG: dict[str, Any] = {**ROPE, "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


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
        (
            BloomConfig(),
            {"attention": "eager"},
            r"train\.row_tokens: the position biases .* set row_tokens: 1, .*eager",
        ),
        (FalconConfig(alibi=True), {"row_tokens": 1}, r"train\.row_tokens: the position biases .* attention: eager"),
        # Accepted: only the weights are missing.
        (BloomConfig(), {"attention": "eager", "row_tokens": 1}, "contains no|cannot be loaded"),
        (FalconConfig(), {}, "contains no|cannot be loaded"),
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


@pytest.mark.parametrize(
    ("config", "attention", "said"),
    [
        (CodeGenConfig(n_embd=16, n_layer=1, n_head=4, rotary_dim=2, vocab_size=16), "segments", "set sdpa or eager"),
        (GPTJConfig(n_embd=16, n_layer=1, n_head=2, rotary_dim=4, vocab_size=16), "sdpa", "set eager"),
        (
            FalconConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=16),
            "segments",
            "set sdpa or eager",
        ),
    ],
)
def test_an_attention_that_the_architecture_lacks_is_refused_with_the_ones_to_set(
    config: PreTrainedConfig, attention: str, said: str, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=rf"^train\.attention: the architecture of .* has no attention {attention}; {said}\.$"
    ):
        load_base(tmp_path, FinetuneParams.model_validate({"attention": attention, "max_length": 64}))


def test_the_default_engine_refuses_a_model_with_a_soft_cap_on_attention_scores() -> None:
    with pytest.raises(UserError, match=r"engine: transformers ignores the soft cap .* use engine vllm"):
        check_attention(Path("gemma"), SimpleNamespace(config=Gemma2Config(**SIZES)), 64)
    uncapped = Gemma2Config(**SIZES, attn_logit_softcapping=None)
    check_attention(Path("gemma"), SimpleNamespace(config=uncapped), 64)


@pytest.mark.parametrize(
    "config",
    [
        *(LlamaConfig(**SIZES, max_position_embeddings=48, rope_parameters=rope) for rope in (YARN, LLAMA3, DYNAMIC)),
        Gemma3TextConfig(**SIZES, max_position_embeddings=48),
        GPT2Config(n_positions=48),
    ],
)
def test_examples_longer_than_positions_that_cannot_be_scaled_are_refused(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    assert load_config(tmp_path, FinetuneParams(max_length=48))[1] is None
    with pytest.raises(UserError, match=r"train\.max_length: 64 exceeds the 48 positions of .*, which can't be scaled"):
        load_config(tmp_path, FinetuneParams(max_length=64))


def test_other_rotary_positions_are_scaled_linearly(tmp_path: Path) -> None:
    LlamaConfig(**SIZES, max_position_embeddings=48).save_pretrained(tmp_path)
    config, factor = load_config(tmp_path, FinetuneParams(max_length=100))
    assert factor == 3
    assert config.rope_parameters == {"rope_theta": 1e4, "rope_type": "linear", "factor": 3.0}


def test_texts_beyond_longrope_s_original_length_are_refused(tmp_path: Path) -> None:
    config = Phi3Config(
        **SIZES, pad_token_id=0, eos_token_id=1, max_position_embeddings=128, original_max_position_embeddings=32,
        rope_parameters=LONG,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert load_config(tmp_path, FinetuneParams(max_length=32))[1] is None
    with pytest.raises(UserError, match=r"train\.max_length: 33 exceeds longrope's .* \(32\), .*; lower it\."):
        load_config(tmp_path, FinetuneParams(max_length=33))
    check_attention(tmp_path, SimpleNamespace(config=config), 32)
    with pytest.raises(UserError, match=r"context: 33 exceeds the limit of .* \(longrope's .* 32\); lower context\."):
        check_attention(tmp_path, SimpleNamespace(config=config), 33)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, {"temperature": 0.9, "top_p": 0.6, "do_sample": True}),
        ({"do_sample": True, "early_stopping": True}, {}),
        ({"do_sample": True, "top_k": 5}, {"do_sample": True, "top_k": 5}),
    ],
)
def test_a_model_with_contradictory_generation_settings_can_be_saved_after_training(
    given: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, intermediate_size=8)).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 2, **given}))
    model, _ = load_base(tmp_path, FinetuneParams(max_length=64))
    model.save_pretrained(tmp_path / "trained")
    saved = json.loads((tmp_path / "trained" / file.name).read_text())
    assert saved["eos_token_id"] == 2
    assert {key: value for key, value in saved.items() if key in ("do_sample", "temperature", "top_p", "top_k")} == kept


def test_messages_about_reinforcement_learning_s_model_name_keys_that_it_has(tmp_path: Path) -> None:
    MistralConfig(**SIZES, sliding_window=32).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^engines\.policy\.context: 64 exceeds .*; lower it\.$"):
        load_base(tmp_path, RLParams().loading(64), RL)
    Lfm2Config(**SIZES, layer_types=["conv"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^rl\.row_tokens: .* set row_tokens: 1"):
        load_base(tmp_path, RLParams().loading(64), RL)
    with pytest.raises(UserError, match=r"contains no|cannot be loaded"):
        load_base(tmp_path, RLParams(row_tokens=1).loading(64), RL)
