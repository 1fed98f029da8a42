"""Converts a model folder to the format of XTuner's transformers 4.48, and its trained weights back.

transformers 5 stores the base and scaling of rotary positions under ``rope_parameters``. 4.48 ignores that key and
would silently use a base of 10,000. Config and tokenizer files are therefore rewritten; weights are linked, not copied.
Afterwards, the main environment's transformers loads the trained weights and saves them as our own trainer does.
Tokenizer files are not converted back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.core.errors import UserError

if TYPE_CHECKING:
    from selfimprove.training.config import FinetuneParams

WEIGHTS = "model.safetensors"
NEW_TOKENIZER_KEYS = ("backend", "is_local", "local_files_only")


def write_start(model_dir: Path, folder: Path, rope: Mapping[str, Any] | None) -> None:
    """Write the model to ``folder`` in the format of transformers 4.48.

    Args:
        rope: the rotary positions to train with, in transformers 5's format (None: those of the model's config).

    Raises:
        UserError: the positions cannot be expressed in 4.48.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = {"config.json", "tokenizer_config.json"}
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    if rope is not None:
        config = {**config, "rope_parameters": dict(rope)}
    try:
        _write(folder / "config.json", config_for_448(config))
    except ValueError as error:
        raise UserError(f"{model_dir}/config.json: {error}; set train.backend: trainer.") from None
    tokenizer, template = model_dir / "tokenizer_config.json", model_dir / "chat_template.jinja"
    if tokenizer.is_file():
        text = template.read_text(encoding="utf-8") if template.is_file() else None
        _write(
            folder / tokenizer.name, tokenizer_config_for_448(json.loads(tokenizer.read_text(encoding="utf-8")), text)
        )
    for file in sorted(model_dir.iterdir()):
        if file.is_file() and file.name not in written:
            (folder / file.name).symlink_to(file.resolve())


def config_for_448(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's ``config.json`` in the format of transformers 4.48; unchanged if it already has that format.

    Raises:
        ValueError: rotary positions differ between layers.
    """
    old = dict(config)
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    rope = dict(old.pop("rope_parameters", None) or {})
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError(
            "rope_parameters differ between layers, which XTuner's version of transformers does not support"
        )
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            old[key] = rope.pop(key)
    if rope:
        old["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
    return old


def tokenizer_config_for_448(config: Mapping[str, Any], template: str | None) -> dict[str, Any]:
    """A model's ``tokenizer_config.json`` in the format of 4.48, including the chat template from its own file."""
    old = {key: value for key, value in config.items() if key not in NEW_TOKENIZER_KEYS}
    if old.get("tokenizer_class") == "TokenizersBackend":
        old["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(old.get("extra_special_tokens"), list):
        old["additional_special_tokens"] = old.pop("extra_special_tokens")
    if template is not None:
        old["chat_template"] = template
    return old


def read_trained(trained: Path, model_dir: Path, config: Any, params: FinetuneParams, out_dir: Path) -> None:
    """Write weights and config, or the adapter, to ``out_dir`` as our trainer does.

    Args:
        trained: the launcher's folder with float32 weights or adapters.
        config: the model's config in transformers 5's format, with the positions used in training.

    Raises:
        UserError: the weights are not those of this model.
    """
    import torch

    from selfimprove.models.loading import load_whole
    from selfimprove.training.loading import peft_config, write_adapter

    if params.lora is not None:
        peft_config(params.lora).save_pretrained(str(trained))
        write_adapter(trained, model_dir, params, out_dir)
        return
    config.save_pretrained(trained)
    generation = model_dir / "generation_config.json"
    if generation.is_file():
        shutil.copyfile(generation, trained / generation.name)
    dtype = getattr(torch, params.dtype)
    try:
        model = load_whole(trained, trust_remote_code=params.trust_remote_code, config=config, dtype=dtype)
    except UserError as error:
        raise UserError(
            f"the weights that XTuner trained do not match {model_dir} ({error}); set train.backend: trainer."
        ) from None
    model.config.use_cache = True
    model.save_pretrained(out_dir)


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
