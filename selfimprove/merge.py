"""``python -m selfimprove.merge models/spin/iter1``: prints where the full weights are; merges an adapter first.

With ``--out`` it is the process in which ``merging.full_weights`` merges.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from selfimprove.adapters import BASE, CONFIG, WEIGHTS
from selfimprove.cli import run
from selfimprove.merging import full_weights

app = typer.Typer(add_completion=False, help="Full weights of a model folder.")


def merge(folder: Path, base: Path, out_dir: Path, dtype: str, *, trust_remote_code: bool = False) -> None:
    """Write the full weights of the adapter in ``folder``, merged into ``base``, and the folder's other files.

    Raises:
        UserError: the base does not load, or the adapter does not fit it.
    """
    from selfimprove.training.loading import merge_adapter

    merge_adapter(base, folder, dtype, trust_remote_code=trust_remote_code).save_pretrained(out_dir)
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in (WEIGHTS, CONFIG, BASE) and not (out_dir / file.name).exists():
            shutil.copyfile(file, out_dir / file.name)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="a model folder")],
    base: Annotated[Path | None, typer.Option(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(hidden=True)] = None,
    dtype: Annotated[str, typer.Option(hidden=True)] = "",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="run the model's own code")] = False,
) -> None:
    """Print the folder that holds the full weights of a model; an adapter is merged first."""
    if base is not None and out is not None:
        merge(folder, base, out, dtype, trust_remote_code=trust_remote_code)
    else:
        print(full_weights(folder, trust_remote_code=trust_remote_code))


if __name__ == "__main__":
    run(app)
