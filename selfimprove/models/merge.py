"""``python -m selfimprove.models.merge models/spin/iter1``: prints the folder of the full weights, merging an adapter.

With ``--out`` it is the subprocess in which ``merging.full_weights`` merges.
"""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, first_line
from selfimprove.models.adapters import WEIGHTS, complete, is_adapter
from selfimprove.models.loading import load_whole, refuse_kernels
from selfimprove.models.merging import full_weights

app = typer.Typer(add_completion=False, help="Full weights of a model folder.")


def merge_adapter(base: Path, adapter: Path, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """The base in ``dtype``, never quantised, with the trained adapter merged into its weights.

    Tied layers of which only one has an adapter differ afterwards, so the merged model's are not tied.

    Args:
        adapter: folder with peft's files; its ``config.json``, if present, is that of the merged model (it may scale
            the positions).
        dtype: name of a torch dtype, or ``auto`` for the base's own.

    Raises:
        UserError: the base does not load, or the adapter does not fit it.
    """
    import peft
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig

    source = adapter if (adapter / "config.json").is_file() else base
    if not trust_remote_code:
        refuse_kernels(source / "config.json")
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{source}/config.json cannot be used ({first_line(error)}); fix the model folder.") from None
    kind = dtype if dtype == "auto" else getattr(torch, dtype)
    model = load_whole(base, trust_remote_code=trust_remote_code, config=config, dtype=kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing tensors, which _check_adapter refuses
            merged = peft.PeftModel.from_pretrained(model, str(adapter))
        _check_adapter(merged, adapter / WEIGHTS)
        _untie(model)
        return merged.merge_and_unload()
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError, SafetensorError) as error:
        raise UserError(
            f"the adapter in {adapter} does not fit {base} ({first_line(error)}); check which model it was trained on."
        ) from None


def _check_adapter(model: Any, file: Path) -> None:
    """peft ignores tensors that the model does not have, and initialises missing ones; here both are errors."""
    import peft
    from safetensors import safe_open

    wanted = set(peft.get_peft_model_state_dict(model, save_embedding_layers=False))
    with safe_open(file, "pt") as weights:
        found = set(weights.keys())
    if missing := wanted - found:
        raise ValueError(f"{file.name} lacks {len(missing)} tensors, such as {min(missing)}")
    if strange := found - wanted - set(model.state_dict()):
        raise ValueError(f"{file.name} has {len(strange)} tensors that the model does not, such as {min(strange)}")


def _untie(model: Any) -> None:
    """Copy tied weights for the output layer if it or the embedding has an adapter, which would change both layers."""
    import torch

    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    embedding, head = (getattr(layer, "base_layer", layer) for layer in layers)
    if [embedding, head] != layers and embedding.weight is head.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="a model folder")],
    base: Annotated[Path | None, typer.Option(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(hidden=True)] = None,
    dtype: Annotated[str, typer.Option(hidden=True)] = "",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run code that comes with the model")
    ] = False,
) -> None:
    """Print the folder that holds the full weights of a model; an adapter is merged first."""
    if base is not None and out is not None:
        merge_adapter(base, folder, dtype, trust_remote_code=trust_remote_code).save_pretrained(out)
        complete(folder, out, dtype)
    elif not (folder / "config.json").is_file() and not is_adapter(folder):
        raise UserError(f"{folder} contains no model (no config.json); name a folder such as models/spin/iter1.")
    else:
        print(full_weights(folder, trust_remote_code=trust_remote_code))


if __name__ == "__main__":
    run(app)
