"""``make rehearse PROFILE=name``: runs a GPU profile's whole graph on this machine, in ``.rehearsal/<profile>``."""

from pathlib import Path
from typing import Annotated

import typer

from selfimprove.core.cli import run
from selfimprove.pipeline.rehearsal.run import rehearse

app = typer.Typer(add_completion=False)


@app.command()
def command(
    profile: Annotated[str, typer.Argument(help="name of a profile in profiles/ that needs a GPU")],
    method: Annotated[str, typer.Option(help="one method; all: every method that the profile runs on a GPU")] = "all",
    quick: Annotated[bool, typer.Option(help="random weights, generated tasks, one iteration; no download")] = False,
) -> None:
    """Run the profile's graph at a small size and report what was replaced; exit code 0 only if every stage ran."""
    raise SystemExit(rehearse(profile, method, root=Path.cwd(), quick=quick))


if __name__ == "__main__":
    run(app)
