"""A tiny real model for tests: a random Llama and a trained tokenizer in an ordinary model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from selfimprove.core.named_templates import NAMED_TEMPLATES, PLAIN_SPECIAL_TOKENS

if TYPE_CHECKING:
    import torch

LINES = (
    "Mia has 3 apples and buys 4 more. How many apples does she have now?",
    "3 + 4 = 7. The answer is \\boxed{7}.",
    "Tom reads 12 pages a day for 5 days. How many pages does he read?",
    "12 * 5 = 60. The answer is \\boxed{60}.",
    "Your answer is incorrect. Please try again!",
    "#### 60",
)


def train_tokenizer(folder: Path, *, vocab_size: int = 320) -> int:
    """Write a byte-level tokenizer (single digits) with the ``plain`` template; returns its vocabulary size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(PLAIN_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|pad|>",
        "eos_token": "<|end|>",
        "chat_template": NAMED_TEMPLATES["plain"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return int(tokenizer.get_vocab_size())


def make_tiny_model(
    folder: Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int | None = None,
    context: int = 512,
    spread: float = 0.15,
    seed: int = 0,
) -> Path:
    """Write config, safetensors weights and tokenizer of a random Llama to ``folder``, and return it.

    The embeddings are untied; the head dimension is ``hidden / heads`` (32 suits vLLM on CPU). ``spread``
    is the weights' standard deviation: large enough that the next token's distribution is far from uniform.
    """
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    vocab_size = train_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        max_position_embeddings=context,
        initializer_range=spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=PLAIN_SPECIAL_TOKENS.index("<|end|>"),
        pad_token_id=PLAIN_SPECIAL_TOKENS.index("<|pad|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a model folder, in its own precision."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
