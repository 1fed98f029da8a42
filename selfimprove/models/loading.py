"""Loads a causal language model from a folder: safetensors only, without network access, with one-sentence errors.

Importing transformers' modelling code takes about 2.5 s in addition to torch, whichever class is imported (the Auto
classes add nothing). It is therefore imported inside the function, and not by any light module.
"""

import json
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json

RESTORE = "restore the folder from its source"
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Keys of a config.json for which transformers downloads and runs a kernel of the hub, if it is named owner/name."""


def load_causal_lm(
    folder: Path, *, dtype: str = "float32", device: str = "cpu", trust_remote_code: bool = False
) -> Any:
    """The model of ``folder`` (a ``transformers.PreTrainedModel``), in evaluation mode, with SDPA attention.

    Raises:
        UserError: there is no folder, config, safetensors weights or device; the weights do not fit the config; or
            transformers does not support the architecture.
    """
    check_folder(folder)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: cuda, but torch finds no GPU here; set the engine's param device to cpu.")
    options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    try:
        model = load_whole(folder, trust_remote_code=trust_remote_code, **options)
    except UnsupportedAttention as error:
        raise UserError(f"engine transformers: {error}; use engine vllm.") from None
    return model.to(device).eval()


class UnsupportedAttention(Exception):
    """The library has no such attention for a model's architecture; the caller knows the remedy."""

    def __init__(self, folder: Path, attention: str) -> None:
        super().__init__(f"the architecture of {folder} has no attention {attention}")


def load_whole(folder: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """``AutoModelForCausalLM.from_pretrained``, from safetensors files only and without network access or output.

    The library randomly initialises tensors that are missing or have another shape in the files; here it is an error.
    It would refuse to save a model with contradictory generation settings, such as a temperature without ``do_sample``
    (Vicuna); here sampling is switched on, or the settings are dropped.

    Args:
        trust_remote_code: whether Python files in the folder may run.
        options: further arguments of ``from_pretrained``.

    Raises:
        UserError: the model does not load, names a kernel of the hub, or tensors are missing or have a shape other than
            config.json specifies.
        UnsupportedAttention: the architecture lacks the option ``attn_implementation``.
    """
    from transformers import AutoModelForCausalLM, logging

    if not trust_remote_code:
        refuse_kernels(folder / "config.json")
    # Hide the library's progress bars and warnings; relevant problems are raised below.
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,  # so that the report names them
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # a config can be wrong in any way: 0 heads divide by zero, text instead of a number
        attention = options.get("attn_implementation")
        # Some architectures look the attention up in a table of their own: a KeyError with its name.
        if attention and ("does not support an attention implementation" in str(error) or error.args == (attention,)):
            raise UnsupportedAttention(folder, attention) from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        machine = isinstance(error, ImportError | MemoryError | torch.OutOfMemoryError)
        remedy = "" if machine else f"; {RESTORE}"
        raise UserError(f"{folder}: the model cannot be loaded ({reason}){remedy}.") from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{folder}: the weights lack {len(missing)} of the tensors that config.json requires (the first is "
            f"{missing[0]}); {RESTORE}."
        )
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise UserError(
            f"{folder}: {name} has shape {list(found)}, but config.json requires {list(wanted)}; {RESTORE}."
        )
    generation = getattr(model, "generation_config", None)
    if generation is not None and not _can_be_saved(generation):
        generation.do_sample = True
        if not _can_be_saved(generation):
            model.generation_config = type(generation).from_model_config(model.config)
    return model


def refuse_kernels(file: Path) -> None:
    """Refuse a config that makes transformers download code from the hub, whatever ``trust_remote_code`` is.

    Raises:
        UserError: it names the key. A file that is no JSON is left to the library.
    """
    try:
        waiting = [json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, RecursionError):
        return
    while waiting:
        config = waiting.pop()
        for key, value in config.items() if isinstance(config, dict) else ():
            if key in KERNELS and "/" in str(value):
                raise UserError(
                    f"{file}: {key} is {str(value)[:100]!r}, code that would be downloaded from the hub and run; "
                    "remove the key."
                )
            waiting.append(value)


def _can_be_saved(generation: Any) -> bool:
    try:
        generation.validate(strict=True)
    except ValueError:
        return False
    return True


def check_folder(folder: Path) -> dict[str, Any]:
    """The config of a model folder, after checking that config and safetensors weights exist.

    Raises:
        UserError: something is missing, or the config is not a JSON object.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; set the param model to a folder with a model.")
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"{folder} contains no config.json; set the param model to a folder with a model.")
    config = load_json(file)
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object; restore it from its source.")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise UserError(f"{folder} contains no model.safetensors; convert the weights to safetensors.")
    return config


def check_vocabulary(folder: Path, model: Any, tokenizer_size: int) -> None:
    """Check that a tokenizer has no ids that the model lacks (the model may have more: padded embeddings).

    Raises:
        UserError: it has such ids, so it belongs to another model.
    """
    rows = model.get_input_embeddings().num_embeddings
    if tokenizer_size > rows:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer_size} ids, but the model only {rows}; put the model's own "
            "tokenizer.json into the folder."
        )


def check_attention(folder: Path, model: Any, context: int) -> None:
    """Check that the engine's attention is the model's, and the slots' length within its limits on positions.

    Raises:
        UserError: it is not; the message contains the param and the limit.
    """
    config = model.config.get_text_config()
    if caps_scores(config):
        raise UserError(f"engine: transformers ignores the soft cap on attention scores of {folder}; use engine vllm.")
    limits = {key: getattr(config, key, None) for key in ("max_position_embeddings", "sliding_window")}
    limits["longrope's original_max_position_embeddings"] = longrope_limit(config)
    for key, limit in limits.items():
        if isinstance(limit, int) and 0 < limit < context:
            raise UserError(f"context: {context} exceeds the limit of {folder} ({key} {limit}); lower context.")


def rope_kinds(config: Any) -> list[dict[str, Any]]:
    """The settings of a model's rotary positions: none, one for all layers, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or not rope:
        return []
    kinds = [kind for kind in rope.values() if isinstance(kind, dict)]
    return kinds or [rope]


def longrope_limit(config: Any) -> int | None:
    """The length beyond which the rotary positions ``longrope`` (Phi-3) turn all of a pass's tokens by other angles.

    A token's result then depends on the texts computed with it. None: the model has other positions.
    """
    limits = [
        kind.get("original_max_position_embeddings") or config.max_position_embeddings
        for kind in rope_kinds(config)
        if kind.get("rope_type") == "longrope"
    ]
    return min(limits, default=None)


def caps_scores(config: Any) -> bool:
    """Whether the model limits its attention scores, which the attention ``sdpa`` ignores (Gemma 2)."""
    return getattr(config, "attn_logit_softcapping", None) is not None
