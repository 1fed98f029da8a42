"""The model that replaces a profile's: a small pretrained one for the Llama family, otherwise a tiny one of its type.

The tiny models have random weights and a tokenizer trained on this repository's documentation. They are built once.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.chat import ChatFormat
from selfimprove.core.publish import publish
from selfimprove.models.tokenizer import TokenizerParams, train_tokenizer

REAL = "models/smollm2"
"""SmolLM2-135M-Instruct, a Llama model; ``make models/smollm2`` downloads it."""

FAMILIES: Mapping[str, str] = {
    r"llama|mistral|zephyr|vicuna|smollm": "llama",
    r"gpt-?2": "gpt2",
    r"qwen-?3": "qwen3",
    r"qwen": "qwen2",
    r"gemma": "gemma",
    r"phi-?3": "phi3",
}
"""Pattern in a model's name -> its type in transformers; the first match counts."""

SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}
VOCABULARY = 2048
NUMBERS = tuple(str(number) for number in range(10, 200))
"""Reflect-RL's labels, each a single token, as in GPT-2's tokenizer."""


def family(model: str) -> str:
    """A model's type in transformers, inferred from its name; llama if no pattern matches."""
    return next((kind for pattern, kind in FAMILIES.items() if re.search(pattern, model.lower())), "llama")


def build(kind: str, folder: Path, root: Path) -> None:
    """Write a tiny model of type ``kind`` with its tokenizer and template, unless the folder has one."""
    if (folder / "config.json").is_file():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which would probe and warn
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    part = folder.with_name(f".{folder.name}.part")
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "docs").glob("*.md"))]
    train_tokenizer(texts, TokenizerParams(vocab_size=VOCABULARY, phrases=False), part, fixed=NUMBERS)
    chat = ChatFormat.load(part)
    config = AutoConfig.for_model(
        kind, **SIZES, vocab_size=chat.vocab_size, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=chat.end_id, pad_token_id=chat.pad_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(part)
    publish(part, folder)
