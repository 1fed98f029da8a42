"""The fast path for Llama-like models: it gives the library's logits, and no other model uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    FalconConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.decoder import Decoder, Module
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.cpu.llama import Llama
from selfimprove.models.loading import load_causal_lm
from tests.support.tiny import make_tiny_model, train_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.15, "max_position_embeddings": 256,
}  # fmt: skip
OTHERS: dict[str, PreTrainedConfig] = {
    "qwen2, biases": Qwen2Config(**SIZES),
    "qwen3, norms in attention": Qwen3Config(**SIZES, head_dim=16),
    "granite, a llama but for its multipliers": GraniteConfig(**SIZES, embedding_multiplier=3.0, logits_scaling=2.0),
    "smollm3, a llama but for a layer without positions": SmolLM3Config(**SIZES, no_rope_layers=[1, 0], pad_token_id=0),
    "gemma3, two kinds of positions": Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=128, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3, joined matrices": Phi3Config(**SIZES, pad_token_id=0),
    "neox, positions for a part of each head": GPTNeoXConfig(**{**SIZES, "num_key_value_heads": 4}),
    "opt, learned positions": OPTConfig(
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        init_std=0.15,
        max_position_embeddings=256,
        dropout=0.0,
    ),
    "falcon, one head of keys": FalconConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.15
    ),
    "gpt2, another layer": GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=256, initializer_range=0.15),
}


def save(config: PreTrainedConfig, folder: Path) -> Path:
    """Save a random model with this config, and a trained tokenizer."""
    config.vocab_size = train_tokenizer(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def complete(folder: Path, numbers: list[int]) -> tuple[TransformersEngine, list[Completion]]:
    cfg = TransformersEngineConfig(engine="transformers", slots=4, context=128, prefill_rows=2, prefill_block=16)
    engine = TransformersEngine(cfg, folder, threads=1)

    async def everything() -> list[list[Completion]]:
        return await asyncio.gather(*(engine.generate(request(number)) for number in numbers))

    return engine, [completions[0] for completions in asyncio.run(everything())]


def request(number: int) -> Request:
    text = f"Mia has {number} apples and buys {7 * number}. How many has she now?"
    return Request([Message(role="user", content=text)], SeedKey(1, f"t{number}"), max_tokens=9 + number)


def steps(forward: Llama | Module, model: Any, tokens: int) -> np.ndarray:
    """Logits [tokens, rows, vocabulary] of four rows that are decoded token by token from an empty cache."""
    decoder = Decoder(model, slots=4, context=64, prefill_rows=2, prefill_block=16, pad_id=0)
    decoder._forward = forward
    ids = np.random.default_rng(0).integers(0, len(model.get_input_embeddings().weight), (tokens, 4))
    return np.stack(
        [decoder.step(row, np.full(4, place), np.ones(4, bool)).numpy().copy() for place, row in enumerate(ids)]
    )


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"layers": 1}])
def test_the_fast_path_gives_the_logits_of_the_library(tmp_path: Path, changes: dict[str, int]) -> None:
    model = load_causal_lm(make_tiny_model(tmp_path / "m", heads=4, **changes))
    short = Llama.of(model, 64)
    assert short is not None
    np.testing.assert_allclose(steps(short, model, 40), steps(Module(model), model, 40), atol=2e-5)


STRETCHED = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SIZES, head_dim=32, sliding_window=None, tie_word_embeddings=True),
        LlamaConfig(**SIZES, rope_parameters=STRETCHED),
    ],
)
def test_mistral_and_scaled_positions_use_the_fast_path_with_the_logits_of_the_library(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    model = load_causal_lm(save(config, tmp_path / "m"))
    short = Llama.of(model, 64)
    assert short is not None
    np.testing.assert_allclose(steps(short, model, 40), steps(Module(model), model, 40), atol=2e-5)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_use_the_library_and_are_equally_exact(tmp_path: Path, kind: str) -> None:
    folder = save(OTHERS[kind], tmp_path / "m")
    engine, together = complete(folder, list(range(1, 13)))
    assert isinstance(engine._decoder._forward, Module)
    assert complete(folder, [5, 11, 2])[1] == [together[4], together[10], together[1]]
    model = load_causal_lm(folder)
    for number in (3, 8):
        prompt = engine.chat.encode(request(number).messages, add_generation_prompt=True).ids
        completion = together[number - 1]
        drawn = [*(completion.token_ids or []), *[engine.chat.end_id] * (completion.finish == "stop")]
        with torch.inference_mode():
            table = torch.log_softmax(model(input_ids=torch.tensor([prompt + drawn])).logits[0], -1)
        expected = table[torch.arange(len(prompt) - 1, len(prompt) + len(drawn) - 1), drawn]
        np.testing.assert_allclose(completion.logprobs or [], expected.numpy(), atol=1e-4)


def test_a_model_that_computes_differently_does_not_use_the_fast_path(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", heads=4)
    model = load_causal_lm(folder)
    model.model.layers[1].self_attn.scaling *= 2
    assert Llama.of(model, 64) is None
    model = load_causal_lm(folder)
    model.model.rotary_emb.rope_type = "dynamic"
    assert Llama.of(model, 64) is None
    assert Llama.of(load_causal_lm(folder, dtype="bfloat16"), 64) is None
    assert Llama.of(load_causal_lm(folder), 64) is not None


def test_joined_weights_share_their_storage_with_the_model(tmp_path: Path) -> None:
    model = load_causal_lm(make_tiny_model(tmp_path / "m", heads=4, kv_heads=2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert Llama.of(model, 64) is not None
    attention = model.model.layers[0].self_attn
    parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]), r"Lfm2ForCausalLM does not .* \(vllm\)"),
        (
            FalconConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, alibi=True),
            "FalconForCausalLM does not",
        ),
        (
            DeepseekV2Config(
                **SIZES | {"num_key_value_heads": 4},
                first_k_dense_replace=2,
                q_lora_rank=8,
                kv_lora_rank=16,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                v_head_dim=8,
            ),
            "DeepseekV2ForCausalLM does not have the same KV cache shape in every layer",
        ),
        (GPTJConfig(n_embd=64, n_layer=1, n_head=4, rotary_dim=8), r"has no attention sdpa; use engine vllm"),
    ],
)
def test_models_that_the_engine_cannot_run_are_refused_in_one_sentence(
    config: PreTrainedConfig, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        complete(save(config, tmp_path / "m"), [1])
