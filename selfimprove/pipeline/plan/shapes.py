"""The shape of a model, from its config.json in a folder or the hub's cache, or from ``models.yaml`` in this folder."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.config import POLICY, TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.vllm.checks import positions
from selfimprove.models.base import BaseParams
from selfimprove.models.scratch import ScratchArch
from selfimprove.pipeline.plan.formulas import BYTES, Shape

TABLE = Path(__file__).with_name("models.yaml")
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "positions")
LARGEST_SIZE = 10**9
ARCHITECTURES = ("llama", "mistral", "qwen2", "gpt2")


def shape_of_base(base: BaseParams, vocab: int) -> Shape:
    """Shape of the model that a method starts from. ``vocab``: vocabulary size for a model from scratch.

    Raises:
        UserError: see ``shape_of``.
    """
    return scratch_shape(base.arch, vocab) if base.model is None else shape_of(base.model, base.revision)


def shape_of(model: str, revision: str | None = None) -> Shape:
    """Shape of the model in a folder or with a hub name.

    Raises:
        UserError: the model's config is not available, or its architecture is not supported.
    """
    found = find_config(model, revision)
    if found is None:
        raise UserError(
            f"plan: the size of {model!r} is unknown: it is no folder with a config.json, and in neither "
            f"the hub's cache nor {TABLE.name}; download the model, or add its config to {TABLE}."
        )
    return read_shape(*found)


def find_config(model: str, revision: str | None = None) -> tuple[Any, str] | None:
    """The config.json of a model in a folder, the hub's cache or ``TABLE``, and its place; None: it is in none of them.

    Raises:
        UserError: the file is no JSON.
    """
    file = Path(model) / "config.json"
    if not os.path.isfile(file):  # unlike pathlib's, False for a name that is too long
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        cached: object = None
        with suppress(HFValidationError):  # no name of a hub model, such as that of a folder in a folder
            cached = None if os.path.exists(model) else try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(cached, str):
            table = read_yaml(TABLE)
            return (table[model], model) if model in table else None
        file = Path(cached)
    return load_json(file), str(file)


def usable_positions(engine: TransformersEngineConfig | VllmEngineConfig, positions: int, longest: int) -> int:
    """The largest ``context`` of an engine whose model has ``positions`` before training on ``longest`` tokens.

    Training scales the rotary positions for its longest example, and only vLLM counts the scaled ones.
    """
    if isinstance(engine, VllmEngineConfig) and engine.model == POLICY:
        return positions * max(1, -(-longest // positions))
    return positions


def read_shape(config: Any, where: str) -> Shape:
    """Shape described by a config.json.

    Raises:
        UserError: the architecture is not supported, or a size is missing or wrong.
    """
    try:
        shape = _described(config, where)
    except KeyError as error:
        raise UserError(f"{where}: key {error} is missing; restore the file from its source.") from None
    except (AttributeError, TypeError, ValueError, ArithmeticError):
        raise UserError(f"{where} is damaged; restore the file from its source.") from None
    for name in SIZES:
        size = getattr(shape, name)
        if type(size) is not int or not 0 < size <= LARGEST_SIZE:
            raise UserError(f"{where}: its {name.replace('_', ' ')} is {size!r}; restore the file from its source.")
    return shape


def _described(config: Mapping[str, Any], where: str) -> Shape:
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(f"{where}: the planner does not support model_type {kind!r}, only {', '.join(ARCHITECTURES)}.")
    stored = BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "float32"), 4)
    if kind == "gpt2":
        hidden, heads = config["n_embd"], config["n_head"]
        return Shape(
            layers=config["n_layer"], hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
            intermediate=config.get("n_inner") or 4 * hidden, vocab=config["vocab_size"],
            positions=config["n_positions"], tied=config.get("tie_word_embeddings", True), gated=False,
            biases="all", learned_positions=True, dropout=True, kept_inner=5, stored=stored,
        )  # fmt: skip
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        positions=positions(config) or config["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", False)),
        biases="qkv" if kind == "qwen2" else "none",
        stored=stored,
    )


def scratch_shape(arch: ScratchArch, vocab: int) -> Shape:
    """Shape of a model from scratch (``models.scratch``)."""
    return Shape(
        layers=arch.layers, hidden=arch.hidden, heads=arch.heads, kv_heads=arch.heads,
        head_dim=arch.hidden // arch.heads, intermediate=arch.intermediate, vocab=vocab, positions=arch.positions,
        tied=False, stored=4,
    )  # fmt: skip
