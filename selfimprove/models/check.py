"""Checks a specified base model before any stage uses it.

The weights are not loaded into memory: the library builds the model on PyTorch's ``meta`` device and reports tensors
that are missing from the files or have another shape. All values are read in chunks.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from selfimprove.core.errors import UserError
from selfimprove.models.loading import RESTORE, check_folder, load_whole

CHUNK = 1 << 24
"""Values that are read at a time."""

MOST_LAYERS = 1000


def check_base(folder: Path) -> Any:
    """Check a model's config, its tensors' names, shapes and types, and that its values are finite.

    Returns:
        The model on the ``meta`` device, for ``check_vocabulary``; None if its architecture is not part of the library
        (``auto_map``: custom code, which is not run here), so that only files and values were checked.

    Raises:
        UserError: with the file and its problem.
    """
    config = check_folder(folder)
    tensors = dict(_tensors(folder))
    layers = config.get("num_hidden_layers", 1)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise UserError(f"{folder}/config.json: num_hidden_layers is {layers!r}; {RESTORE}.")
    model = None if "auto_map" in config else load_whole(folder, device_map="meta")
    _check_types(tensors, quantised="quantization_config" in config)
    _check_values(tensors)
    return model


def _tensors(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of every tensor in the safetensors files; only headers are read."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - no mapping
                    yield name, file
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is not an intact safetensors file ({error}); {RESTORE}.") from None


def _check_types(tensors: Mapping[str, Path], *, quantised: bool) -> None:
    """Weights are floating-point numbers, unless the config specifies a quantisation (buffers may have any type)."""
    for name, file in () if quantised else tensors.items():
        if name.endswith(".weight"):
            with safe_open(file, "pt") as weights:
                kind = weights.get_slice(name).get_dtype()
            if not kind.startswith(("F", "BF")):
                raise UserError(f"{file}: {name} holds {kind}, not floating-point numbers; convert or restore it.")


def _check_values(tensors: Mapping[str, Path]) -> None:
    """All values are finite."""
    for name, file in tensors.items():
        with safe_open(file, "pt") as weights:
            for part in _parts(weights.get_slice(name)):
                numbers = part.float() if part.is_floating_point() and part.element_size() == 1 else part  # float8
                if not bool(torch.isfinite(numbers).all()):
                    raise UserError(f"{file}: {name} contains NaN or infinity; {RESTORE}.")


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """A tensor in parts of about ``CHUNK`` values."""
    shape = tensor.get_shape()
    if not shape:
        yield tensor[...]
        return
    rows = max(1, CHUNK // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield tensor[start : start + rows]
