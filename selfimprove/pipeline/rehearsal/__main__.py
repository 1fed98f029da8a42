"""``make rehearse PROFILE=name``: runs a GPU profile's whole graph on this machine, in ``.rehearsal/<profile>``."""

from pathlib import Path
from typing import Annotated

import typer

from selfimprove.core.cli import run
from selfimprove.pipeline.rehearsal.run import rehearse

app = typer.Typer(add_completion=False)


@app.command()
def command(
    profile: Annotated[str, typer.Argument(help="a profile of profiles/ that asks for a GPU")],
    method: Annotated[str, typer.Option(help="one method; all: those that the profile runs on a GPU")] = "all",
    quick: Annotated[bool, typer.Option(help="random weights, made tasks, one iteration: needs no download")] = False,
) -> None:
    """Run the profile's graph with small sizes and report what was replaced; exit code 0 only if all of it ran."""
    raise SystemExit(rehearse(profile, method, root=Path.cwd(), quick=quick))


if __name__ == "__main__":
    run(app)
