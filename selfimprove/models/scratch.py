"""Builds a randomly initialised model folder with the Llama architecture: the start of every base from scratch."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.memory import check_memory
from selfimprove.core.params import Section
from selfimprove.models.tokenizer import copy_tokenizer_files


class ScratchArch(Section):
    """The size of a model trained from scratch."""

    hidden: int = Field(default=128, ge=8, le=65_536)
    layers: int = Field(default=3, ge=1, le=1000)
    heads: int = Field(default=4, ge=1, le=1024)
    intermediate: int = Field(default=344, ge=8, le=1_000_000)
    positions: int = Field(default=512, ge=16, description="maximum sequence length in tokens")

    @model_validator(mode="after")
    def _divides(self) -> ScratchArch:
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads})")
        return self


def build_scratch_model(arch: ScratchArch, tokenizer_dir: Path, out_dir: Path, seed: int) -> int:
    """Write config, safetensors weights and the tokenizer's files to ``out_dir``; returns the number of parameters.

    Embeddings are untied, so that engines may reload weights in place. Equal seed and sizes give equal bytes.

    Raises:
        UserError: ``tokenizer_dir`` has no tokenizer or no chat template, or the model is larger than the memory.
    """
    import torch
    from safetensors.torch import save_file
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    chat = ChatFormat.load(tokenizer_dir)
    if out_dir.exists() and any(out_dir.iterdir()):
        raise UserError(f"{out_dir} is not empty; choose a new folder for the model.")
    size, rows = arch.hidden, chat.vocab_size
    numbers = 2 * rows * size + arch.layers * (4 * size + 3 * arch.intermediate + 2) * size + size
    check_memory(4 * numbers, f"a model of {numbers:,} parameters (base.*.arch: hidden, layers, intermediate)")
    config = LlamaConfig(
        vocab_size=chat.vocab_size,
        hidden_size=arch.hidden,
        intermediate_size=arch.intermediate,
        num_hidden_layers=arch.layers,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.heads,
        max_position_embeddings=arch.positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=chat.end_id,
        pad_token_id=chat.pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    # The same bytes as `save_pretrained`, which imports DeepSpeed if it is installed: that takes seconds and warns.
    out_dir.mkdir(parents=True, exist_ok=True)
    model.config.architectures, model.config.dtype = [type(model).__name__], "float32"
    model.config.save_pretrained(out_dir)
    model.generation_config.save_pretrained(out_dir)
    save_file(model.state_dict(), out_dir / "model.safetensors", metadata={"format": "pt"})
    copy_tokenizer_files(tokenizer_dir, out_dir)
    return sum(parameter.numel() for parameter in model.parameters())
