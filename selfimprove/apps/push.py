"""``make push MODEL=models/rise/iter2 TO=owner/name``: uploads a trained row and its card to the Hugging Face Hub.

Without ``CONFIRM=yes`` nothing is sent: the command writes the card and prints what would be uploaded. A new repository
is private unless ``PUBLIC=yes``. The token is read only from ``HF_TOKEN``.

A row trained with LoRA directly on a model of the hub is pushed as an adapter of that model. Any other row is pushed
with its full weights, because its base is not available to others.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, first_line
from selfimprove.core.publish import link_copy, write_json, write_text
from selfimprove.core.records import load_json
from selfimprove.core.yaml import read_yaml
from selfimprove.methods.rows import START
from selfimprove.models.adapters import BASE, CONFIG, is_adapter, read_base
from selfimprove.models.base import SHIPPED, BaseParams, BaseSection
from selfimprove.models.card import METHODS, Row, card, escaped
from selfimprove.models.merging import full_weights
from selfimprove.pipeline.params import PARAMS_FILE, load_section
from selfimprove.pipeline.sections import METHOD_SCHEMAS

FOLDER = Path(".scratch/push")
OURS = "apache-2.0"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Valid repository names on the hub."""
PUSHED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")

app = typer.Typer(add_completion=False, help="Push a trained row to the Hugging Face Hub.")


def prepare(model: Path, repository: str) -> Path:
    """Create the folder to upload: the row's files (links) and its card, README.md.

    Raises:
        UserError: ``model`` is not the folder of a trained row, one of its files is damaged, or ``repository`` is not
            of the form owner/name.
    """
    if not NAME.fullmatch(repository):
        raise UserError(f"push: TO={repository!r} is not a repository name; write owner/name.")
    _check_name(repository)
    parts = model.parts
    method = parts[1] if len(parts) > 2 else ""
    if parts[:1] != ("models",) or method not in METHODS:
        raise UserError(f"push: MODEL={model} is not the folder of a trained row, such as models/rise/iter2.")
    if not (model / "config.json").is_file():
        raise UserError(f"push: {model} contains no model (config.json); run `make repro`, or name another row.")
    values = read_yaml(PARAMS_FILE)
    base: BaseParams = dict(load_section(values, "base", BaseSection, str(PARAMS_FILE)))[method]
    load_section(values, method, METHOD_SCHEMAS[method], str(PARAMS_FILE))
    public = _public(base)
    adapter = public is not None and _is_plain(base) and _is_adapter_of_base(model, method)
    row = Row(
        method=method, name=model.name, base=public, base_text=_text(base, public), licence=_licence(base),
        settings=_settings(METHOD_SCHEMAS[method].spelled_out(values[method]), model.name), section=values[method],
        adapter=adapter,
    )  # fmt: skip
    text = card(row, repository, Path("results", *parts[1:]))
    source = model if adapter else full_weights(model)
    files = sorted({file for pattern in PUSHED for file in source.glob(pattern)})
    for file in files:
        _check(file)
    folder = FOLDER / repository.replace("/", "--")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        if file.name not in (BASE, CONFIG):
            link_copy(file.resolve(), folder / file.name)
    if adapter and public is not None:
        config = json.loads((model / CONFIG).read_text(encoding="utf-8"))
        write_json(folder / CONFIG, {**config, "base_model_name_or_path": public[0], "revision": public[1]})
    write_text(folder / "README.md", text)
    return folder


def _check_name(repository: str) -> None:
    """Raises: UserError: the hub allows no such name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"push: TO: {first_line(error).rstrip('.')}; choose another name.") from None


def _check(file: Path) -> None:
    """Raises: UserError: it is not JSON, or safetensors of the length that their header states."""
    from safetensors import SafetensorError, safe_open

    if file.suffix == ".json":
        load_json(file, float)  # a config may contain Infinity
    elif file.suffix == ".safetensors":
        try:
            with safe_open(file, "np"):
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(f"push: {file} is not an intact safetensors file ({error}); run `make repro`.") from None


def _public(base: BaseParams) -> tuple[str, str] | None:
    """Name and revision of the hub model that the method started from; None if it is not a hub model."""
    if base.model is None or base.revision is None or Path(base.model).is_dir():
        return None
    owner_and_name = base.model if "/" in base.model else f"library/{base.model}"  # such as gpt2
    return (base.model, base.revision) if NAME.fullmatch(owner_and_name) else None


def _is_plain(base: BaseParams) -> bool:
    """Whether the hub model of ``base`` is not itself an adapter, judging by its download in the cache."""
    from huggingface_hub import try_to_load_from_cache

    assert base.model is not None
    return not isinstance(try_to_load_from_cache(base.model, CONFIG, revision=base.revision), str)


def _is_adapter_of_base(model: Path, method: str) -> bool:
    """Whether the row is an adapter of exactly the model that ``base@<method>`` took over."""
    if not is_adapter(model):
        return False
    return read_base(model)[0] == Path("models", method, START).absolute()


def _licence(base: BaseParams) -> str | None:
    """The licence of the weights that the method started from: ours, or the one that the folder's model card names."""
    if base.model is None:
        return OURS
    file = Path(base.model) / "README.md"
    front = re.match(r"---\n(.*?)\n---", file.read_text("utf-8", "replace"), re.DOTALL) if file.is_file() else None
    found = re.search(r"^license: *([a-z0-9.-]+) *$", front[1], re.MULTILINE) if front else None
    return None if found is None or found[1] == "other" else found[1]


def _text(base: BaseParams, public: tuple[str, str] | None) -> str:
    if public is not None:
        name, revision = public
        return f"[{name}](https://huggingface.co/{name}) at revision {escaped(revision)}"
    if base.model is not None:
        return "the small pretrained model of *selfimprove*" if base.model == SHIPPED else "a model from a folder"
    arch = base.arch
    return f"none: a Llama architecture from scratch, {arch.layers} layers, {arch.hidden} wide"


def _settings(section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The params of a row: its entries, including an iteration's generation."""
    groups = {group: section.get(group) for group in ("iterations", "models", "rows")}
    found = {key: inner[name] for key, inner in groups.items() if isinstance(inner, Mapping) and name in inner}
    if found:
        return found
    raise UserError(f"push: params.yaml has no row {name!r}; `make use` the profile that it was trained with.")


def upload(folder: Path, repository: str, token: str, *, public: bool) -> str:
    """Create the repository if necessary and commit the folder; returns the commit's URL.

    Raises:
        UserError: the hub refuses the upload or cannot be reached, or the connection breaks during it.
    """
    import httpx2  # the HTTP client of huggingface_hub
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    from selfimprove.core.address import client_settings

    with client_settings():
        api = HfApi(token=token)
        try:
            api.create_repo(repository, private=not public, exist_ok=True)
            done = api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Trained with selfimprove")
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", "?")
            raise UserError(
                f"push: the hub refused {repository} (status {status}); check that HF_TOKEN can write to it."
            ) from None
        except (httpx2.HTTPError, OSError) as error:
            raise UserError(f"push: the hub cannot be reached ({type(error).__name__}); check the network.") from None
        except (RuntimeError, ValueError) as error:  # raised by huggingface_hub when a file of weights cannot be stored
            raise UserError(
                f"push: the upload to {repository} failed ({first_line(error).rstrip('.')}); run it again, or check "
                "the repository's storage limit on the hub."
            ) from None
    return str(done.commit_url)


@app.command()
def main(
    model: Annotated[str, typer.Argument(help="the folder of a trained row, such as models/rise/iter2")] = "",
    to: Annotated[str, typer.Option(help="hub repository, as owner/name")] = "",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="upload; without it, only list what would be uploaded")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="create a new repository as public instead of private")
    ] = False,
) -> None:
    """Write a trained row's model card; with --confirm, upload the row."""
    if not model or not to:
        raise UserError(
            "push: MODEL and TO are required; write for example: make push MODEL=models/rise/iter2 TO=owner/name."
        )
    token = os.environ.get("HF_TOKEN")
    if confirm and not token:
        raise UserError("push: HF_TOKEN is not set; set it to a token that may write to the repository.")
    folder = prepare(Path(os.path.normpath(model)), to)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>14,}  {file.name}")
    print(f"card: {folder / 'README.md'}")
    if not confirm or not token:
        kind = "public" if public else "private"
        print(f"Nothing was uploaded. CONFIRM=yes uploads these files to {to} (a new repository would be {kind}).")
        return
    print(f"pushed: {upload(folder, to, token, public=public)}")


if __name__ == "__main__":
    run(app)
