"""Looks through a model folder where it enters, so that no later stage trips over what is wrong with it.

Nothing is loaded: the library builds the model without memory (on PyTorch's device ``meta``) and reports which of its
tensors the files lack or hold in another shape, as it names and ties them. Values are read a part at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from selfimprove.engines.models import check_folder, check_vocabulary
from selfimprove.errors import UserError

CHUNK = 1 << 24
"""Numbers that are looked at in one go."""

SECONDS = 60.0
"""For looking at values. What is left then is looked at in part: the first ``SAMPLE`` numbers of each tensor."""

SAMPLE = 1 << 14
MOST_LAYERS = 1000
RESTORE = "restore the folder from its source"


def check_base(folder: Path, *, seconds: float = SECONDS) -> Any:
    """Check a model's config, its tensors' names, shapes and types, and that its numbers are finite.

    Returns:
        The model on the device ``meta``, for ``check_vocabulary``; None where its architecture is not the library's
        own (``auto_map``: custom code, which is not run here), so that only files and values were checked.

    Raises:
        UserError: the file and what is wrong with it.
    """
    config = check_folder(folder)
    tensors = dict(_tensors(folder))
    layers = config.get("num_hidden_layers", 1)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise UserError(f"{folder}/config.json: num_hidden_layers is {layers!r}; {RESTORE}.")
    model = None if "auto_map" in config else _built(folder)
    _check_types(tensors, quantised="quantization_config" in config)
    _check_values(tensors, seconds)
    return model


def check_tokenizer(folder: Path, model: Any, size: int) -> None:
    """``check_vocabulary``, where ``check_base`` gave a model. Raises: as that."""
    if model is not None:
        check_vocabulary(folder, model, size)


def _tensors(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of every tensor in the safetensors files; only headers are read."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - no mapping
                    yield name, file
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is not a whole safetensors file ({error}); {RESTORE}.") from None


def _built(folder: Path) -> Any:
    """The model on ``meta``, once every tensor that it needs is seen to be in the files, in its shape."""
    from transformers import AutoModelForCausalLM, logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # a config may be wrong in any way: heads 0 divide by zero, a text is no number
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{folder}/config.json: no causal language model can be built ({reason}); {RESTORE}.") from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{folder}: the weights lack {len(missing)} of the tensors that config.json asks for ({missing[0]} is the "
            f"first); {RESTORE}."
        )
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise UserError(
            f"{folder}: {name} has the shape {list(found)}, config.json asks for {list(wanted)}; {RESTORE}."
        )
    return model


def _check_types(tensors: Mapping[str, Path], *, quantised: bool) -> None:
    """Weights are floating-point numbers, unless the config says how they are quantised (buffers may be anything)."""
    for name, file in () if quantised else tensors.items():
        if name.endswith(".weight"):
            with safe_open(file, "pt") as weights:
                kind = weights.get_slice(name).get_dtype()
            if not kind.startswith(("F", "BF")):
                raise UserError(f"{file}: {name} holds {kind}, no floating-point numbers; convert or restore it.")


def _check_values(tensors: Mapping[str, Path], seconds: float) -> None:
    """No NaN and no infinity, as far as the time allows."""
    until = time.monotonic() + seconds
    for name, file in tensors.items():
        with safe_open(file, "pt") as weights:
            for part in _parts(weights.get_slice(name), sample=time.monotonic() > until):
                numbers = part.float() if part.is_floating_point() and part.element_size() == 1 else part  # float8
                if not bool(torch.isfinite(numbers).all()):
                    raise UserError(f"{file}: {name} holds numbers that are not finite (NaN or infinity); {RESTORE}.")


def _parts(tensor: Any, *, sample: bool) -> Iterator[torch.Tensor]:
    """A tensor in parts of about ``CHUNK`` numbers, or only its first rows."""
    shape = tensor.get_shape()
    if not shape:
        yield tensor[...]
        return
    row = max(1, math.prod(shape[1:]))
    rows = max(1, (SAMPLE if sample else CHUNK) // row)
    for start in range(0, shape[0], rows):
        yield tensor[start : start + rows]
        if sample:
            return
