"""``make page``: builds this run's report, ``report/index.html``."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from selfimprove.apps.page.build import OUT, build
from selfimprove.apps.page.run import run_folder
from selfimprove.apps.page.scores import Wanted
from selfimprove.core.cli import run as run_command
from selfimprove.core.errors import for_terminal


def main(
    run: Annotated[Path, typer.Option(help="folder of the run")] = Path(),
    out: Annotated[Path, typer.Option(help="output folder")] = OUT,
    logprobs: Annotated[
        Wanted,
        typer.Option(
            help="log-probabilities: auto: a sample, if models are small; yes: a sample; all: every episode; no: none"
        ),
    ] = "auto",
    compare: Annotated[
        list[str] | None, typer.Option(help="folder of a run, commit or experiment to compare with")
    ] = None,
    live: Annotated[bool, typer.Option(help="include the live view of make watch")] = False,
) -> None:
    """Write the report; print its path and what could not be read."""
    began = time.monotonic()
    built = build(run_folder(run), out, logprobs, compare_with=compare or (), live=live)
    size = sum(path.stat().st_size for entry in built.files for path in [entry, *entry.rglob("*")] if path.is_file())
    for problem in built.problems:
        print(f"omitted: {for_terminal(problem)}", file=sys.stderr)
    if not any((run / "results").glob("*/*/metrics.json")):
        print(f"{run / 'results'} contains no results yet; run `make repro` first.", file=sys.stderr)
    print(f"{out / 'index.html'}: {size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s; open it in a browser")


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    run_command(app)
