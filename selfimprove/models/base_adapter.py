"""A base model given as a LoRA adapter: finds its own base and merges it.

The format is peft's, as written by ``save_pretrained``::

    adapter_model.safetensors
    adapter_config.json          {"peft_type": "LORA", "base_model_name_or_path": "owner/name", "revision": "1f0c…", …}
"""

import json
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.models.adapters import BASE, CONFIG, WEIGHTS, is_adapter
from selfimprove.models.base import BaseParams, resolve_model
from selfimprove.models.merging import full_weights
from selfimprove.models.tokenizer import copy_tokenizer_files


def with_full_weights(model: Path, params: BaseParams, merged: Path) -> Path:
    """``model`` itself; for an adapter, ``merged``, to which full weights and tokenizer are written.

    The weights have the base's own dtype. The tokenizer is the adapter's, if it has one.

    Raises:
        UserError: the adapter does not specify its base, is not a LoRA adapter, or does not fit its base.
    """
    if not is_adapter(model) and not (model / WEIGHTS).is_file():
        if params.adapter_of is not None:
            raise UserError(
                f"base: {model} contains no adapter (no {CONFIG}); remove adapter_of, or set model to an adapter."
            )
        return model
    if (model / BASE).is_file() and params.adapter_of is None:
        return full_weights(model)
    config = _config(model)
    base = _base_of(model, config, params.adapter_of)
    from selfimprove.models.merge import merge_adapter

    merge_adapter(base, model, "auto").save_pretrained(merged)
    copy_tokenizer_files(model if (model / "tokenizer.json").is_file() else base, merged)
    return merged


def named_base(model: str | None) -> str | None:
    """The folder that an adapter's own config names as its base: an input that the params do not name.

    None if ``model`` is no folder with an adapter, or if its base is on the hub or among this repository's outputs,
    whose weights are checked when they are merged.
    """
    if model is None or (Path(model) / BASE).is_file():
        return None
    try:
        name = json.loads((Path(model) / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):  # ValueError: not JSON, or a null character in the path
        return None
    return name if isinstance(name, str) and name and Path(name).is_dir() else None


def _config(model: Path) -> dict[str, Any]:
    """The content of ``adapter_config.json``, after checking that this is a LoRA adapter in safetensors."""
    if not is_adapter(model):
        raise UserError(
            f"base: {model} contains {WEIGHTS} without {CONFIG}, so the adapter cannot be used; add that file."
        )
    if not (model / WEIGHTS).is_file():
        raise UserError(
            f"base: {model} contains no {WEIGHTS}; convert the adapter, because other formats are not supported."
        )
    others = sorted(file.name for file in model.glob("*.safetensors") if file.name != WEIGHTS)
    if others:
        raise UserError(
            f"base: {model} contains both a model ({others[0]}) and an adapter; move the one to use to a folder of its "
            "own."
        )
    try:
        config = json.loads((model / CONFIG).read_text(encoding="utf-8"))
        kind = config.get("peft_type")
    except (ValueError, AttributeError):
        raise UserError(f"base: {model / CONFIG} is not a JSON object; restore it from its source.") from None
    if kind != "LORA":
        raise UserError(
            f"base: {model} contains an adapter of type {kind!r}, but only LoRA adapters are supported; merge it with "
            "peft first."
        )
    return dict(config)


def _base_of(model: Path, config: dict[str, Any], told: str | None) -> Path:
    """The folder of the adapter's base; a hub model is downloaded once."""
    if told is not None and not Path(told).is_dir():
        name, _, revision = told.partition("@")
    else:
        name = told or config.get("base_model_name_or_path") or ""
        revision = "" if told else config.get("revision") or ""
    if not isinstance(revision, str):
        raise UserError(f"base: {model / CONFIG}: the revision {revision!r} is not text; set adapter_of.")
    if not isinstance(name, str) or not name:
        raise UserError(f"base: {model / CONFIG} does not name the base model of the adapter; set adapter_of.")
    if not Path(name).is_dir() and not revision:
        raise UserError(
            f"base: {model} is an adapter of {name!r}, which is not a folder and has no revision; set adapter_of to a "
            "folder, or to name@commit of a hub model."
        )
    base = resolve_model(BaseParams(model=name, revision=revision or None))
    if is_adapter(base):
        raise UserError(
            f"base: {model} is an adapter of {base}, which is itself an adapter; merge that one first, with "
            "base.<method>.model."
        )
    return base
