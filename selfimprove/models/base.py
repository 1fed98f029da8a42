"""Resolves the base model: from scratch, from a folder, or from the hub at a pinned revision."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pydantic import Field, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.publish import link_copy
from selfimprove.models.scratch import ScratchArch

SMOLLM2 = "models/smollm2"
"""The folder that ``make models/smollm2`` writes; params may specify it before it exists."""

SHIPPED = "models/pretrained"
"""The folder of the small model that is in git (``make pretrain`` rebuilds it)."""

MADE = {
    SMOLLM2: f"run `make {SMOLLM2}` first",
    SHIPPED: f"run `git checkout {SHIPPED}`, or rebuild it with `make pretrain`",
}
"""Folders that params may specify before they exist, and how to create them."""

WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.py"]
"""Files of a hub model that are downloaded; a model's own code runs only with ``trust_remote_code``."""


class BaseParams(Section):
    """``model``: null builds ``arch`` from scratch; otherwise a folder, or a hub name with its ``revision``.

    The model may be a LoRA adapter in peft's format, which is merged into its base.
    """

    model: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, description="commit of a hub model, since a name alone is not fixed")
    adapter_of: str | None = Field(
        default=None,
        description="for a model that is an adapter, its base: a folder, or a hub model as name@commit; null: the "
        "one named in its adapter_config.json",
    )
    chat_template: str | None = Field(
        default=None, description="null: the model's own; plain, zephyr, rise, react, text, or a file"
    )
    arch: ScratchArch = ScratchArch()

    @model_validator(mode="after")
    def _pinned(self) -> BaseParams:
        if self.model and self.model not in MADE and not os.path.isdir(self.model) and not self.revision:
            raise ValueError(f"model {self.model!r} is not a folder; for a hub model, set revision too")
        if self.model is None and self.chat_template is not None:
            raise ValueError(
                "chat_template requires model; for the small model, set tokenizer.<method>.template instead"
            )
        return self


class BaseSection(Section):
    """The ``base`` section: the model that each method starts from."""

    rise: BaseParams
    agent_r: BaseParams
    reflect_rl: BaseParams
    spin: BaseParams


def resolve_model(params: BaseParams) -> Path:
    """The model's folder; a hub model is downloaded once, with safetensors weights only.

    Raises:
        UserError: the hub is unreachable, has no such repository or requires accepting its licence, the environment's
            proxy cannot be used, or the folder has not been created yet.
    """
    assert params.model is not None
    if os.path.isdir(params.model):
        return Path(params.model)
    if params.model in MADE:
        raise UserError(f"base: {params.model} does not exist yet; {MADE[params.model]}.")
    from selfimprove.core.address import client_settings

    with client_settings():
        return _download(params.model, params.revision)


def _download(model: str, revision: str | None) -> Path:
    """The folder of a hub model in the hub's cache. Raises: UserError: see ``resolve_model``."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        path = snapshot_download(
            model,
            revision=revision,
            allow_patterns=WANTED,
            token=os.environ.get("HF_TOKEN") or None,  # an empty one would be sent as a malformed header
        )
    except GatedRepoError:  # a subclass of RepositoryNotFoundError, so it comes first
        raise UserError(
            f"base: {model!r} is gated: accept the licence at https://huggingface.co/{model}, then set HF_TOKEN to a "
            "token of the account that accepted it."
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"base: the hub has no {model!r} that you can access; fix the name, or set HF_TOKEN if the repository is "
            "private."
        ) from None
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"base: {model!r} could not be downloaded ({type(error).__name__}); check the network and the revision, or "
            "name a folder that contains the model."
        ) from None
    return Path(path)


def take_weights(source: Path, folder: Path, *, own: bool) -> None:
    """Put a model's configuration, safetensors and the code that its configuration names into ``folder``.

    Files in the hub's cache are hard-linked if possible, else copied. A folder of the user's ``own`` is copied: DVC
    shares the file with its cache and makes it read-only, which must not happen to the user's files.

    Raises:
        UserError: the source has no safetensors weights.
    """
    files = [*source.glob("*.safetensors"), *source.glob("*.safetensors.index.json")]
    if not any(file.suffix == ".safetensors" for file in files):
        raise UserError(
            f"{source} contains no *.safetensors; convert the model, because other formats are not supported."
        )
    folder.mkdir(parents=True, exist_ok=True)
    configs = [source / "config.json", source / "tokenizer_config.json"]
    own_code = any(file.is_file() and b'"auto_map"' in file.read_bytes() for file in configs)
    code = source.glob("*.py") if own_code else ()
    for file in [*files, *code, source / "config.json", source / "generation_config.json"]:
        if file.exists():
            copy = shutil.copyfile if own else link_copy
            copy(file.resolve(), folder / file.name)
