"""Model folders that contain a LoRA adapter instead of full weights.

Training with ``lora`` writes::

    models/spin/iter1/
        adapter_model.safetensors   the adapter's weights
        adapter_config.json         peft's settings
        adapter_base.json           {"base": "models/spin/base", "dtype": "float32", "weights": "5d0c…"}
        config.json                 of the model with the adapter merged (RoPE scaling included)
        tokenizer.json, …

``base`` may itself contain an adapter. ``merging.full_weights`` returns a folder with full weights; only code that
needs the weights calls it. This module imports neither torch nor peft.
"""

import json
import os
import shutil
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ValidationError, field_validator

from selfimprove.core.errors import UserError, fault
from selfimprove.core.publish import write_json

WEIGHTS, CONFIG, BASE = "adapter_model.safetensors", "adapter_config.json", "adapter_base.json"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class AdapterBase(BaseModel):
    """``adapter_base.json``: the model that an adapter is merged into.

    Attributes:
        base: the model folder that training started from, relative to a folder that contains both (the repository).
        weights: its ``weights_key``.
        dtype: of the merged weights.
    """

    base: str
    weights: str
    dtype: Literal["float32", "bfloat16", "float16"]

    @field_validator("base")
    @classmethod
    def _relative(cls, value: str) -> str:
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError("expected a relative path without '..'")
        return value


def is_adapter(folder: Path) -> bool:
    """Whether the folder contains an adapter instead of full weights."""
    return (folder / CONFIG).is_file()


def weights_key(folder: Path) -> str:
    """Hash of a model's weights, independent of its location; an adapter's includes the hash of its base."""
    digest = blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.is_file() and (file.name.endswith(WEIGHT_SUFFIXES) or file.name in (CONFIG, BASE)):
            add_file(digest, file)
    return digest.hexdigest()


def content_key(folder: Path) -> str:
    """Hash of the names and contents of all files of a model folder."""
    digest = blake2b(digest_size=16)
    for file in sorted(one for one in folder.iterdir() if one.is_file()):
        add_file(digest, file)
    return digest.hexdigest()


def add_file(digest: blake2b, file: Path) -> None:
    """Add a file's name and content to a hash."""
    digest.update(file.name.encode())
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)


def take_adapter(trained: Path, out_dir: Path) -> None:
    """Copy peft's two files from a folder written by ``save_pretrained``, without the card and training arguments."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, CONFIG):
        shutil.copyfile(trained / name, out_dir / name)


def complete(model_dir: Path, out_dir: Path, dtype: str) -> None:
    """Complete newly written weights with the other files (tokenizer, template) of ``model_dir``.

    If the weights are an adapter, also record ``model_dir`` as its base. Neither file contains an absolute path, and
    equal runs write equal bytes.
    """
    for file in sorted(model_dir.iterdir()):
        weights = file.name.endswith(WEIGHT_SUFFIXES) or file.name in (CONFIG, BASE)
        if file.is_file() and not weights and not (out_dir / file.name).exists():
            shutil.copyfile(file, out_dir / file.name)
    if not is_adapter(out_dir):
        return
    common = os.path.commonpath([model_dir.absolute(), out_dir.absolute()])
    base = model_dir.absolute().relative_to(common).as_posix()
    config = json.loads((out_dir / CONFIG).read_text(encoding="utf-8"))
    # peft stores some lists as sets, whose order varies between runs.
    config = {key: sorted(value) if isinstance(value, list) else value for key, value in config.items()}
    write_json(out_dir / CONFIG, {**config, "base_model_name_or_path": base})
    write_json(out_dir / BASE, {"base": base, "dtype": dtype, "weights": weights_key(model_dir)})


def read_base(folder: Path) -> tuple[Path, AdapterBase]:
    """The base of the adapter in ``folder``: its path, and the content of ``adapter_base.json``.

    Raises:
        UserError: the adapter does not specify its base, the base does not exist, or its weights are not those that
            the adapter was trained on.
    """
    file = folder / BASE
    if not file.is_file():
        raise UserError(
            f"{folder} contains an adapter without {BASE}, so its base is unknown; set base.<method>.model to the "
            "folder, which merges the adapter with its base first."
        )
    try:
        record = AdapterBase.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(
            f"{file} cannot be used ({fault(error)}); restore it, or run the stage that created it."
        ) from None
    above = [parent / record.base for parent in folder.absolute().parents]
    base = next((one for one in above if one.is_dir()), None)
    if base is None:
        raise UserError(
            f"{folder} is an adapter of {record.base}, which is missing; get it with `make fetch` or `dvc repro`."
        )
    if weights_key(base) != record.weights:
        raise UserError(
            f"{folder} is an adapter of {record.base}, whose weights have changed since; run `dvc repro`, or restore "
            "them with `dvc checkout`."
        )
    return base, record
