"""``make repro``: DVC runs what is out of date, one stage after another or several at once (``JOBS=4``).

Where nobody says how many, it is as many as the cores have room for, ``run.threads`` for each; one where a stage takes
a GPU, or a cluster does the work.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from selfimprove.core import cli
from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.params import METHODS, RunParams, load_section
from selfimprove.pipeline.warm import PARALLEL, uses_gpu

PARAMS_FILE = Path("params.yaml")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    goals: Annotated[list[str], typer.Argument(help="stages, as for dvc repro")],
    jobs: Annotated[str, typer.Option(help="stages at once; empty: as many as there are cores for")] = "",
) -> None:
    """Become the command that does it."""
    count = asked(jobs) if jobs else jobs_here(read_yaml(PARAMS_FILE))
    if count > 1:
        print(f"up to {count} stages at once (JOBS=1: one after another)", flush=True)
    how = [*PARALLEL, str(count)] if count > 1 else ["dvc", "repro"]
    os.execv(sys.executable, [sys.executable, "-m", "selfimprove.pipeline.warm", *how, *goals])


def asked(jobs: str) -> int:
    """The number that a person gives.

    Raises:
        UserError: it is none.
    """
    if not (jobs.isascii() and jobs.isdecimal() and int(jobs) > 0):
        raise UserError(f"JOBS={jobs}: how many stages may run at once is a number from 1 on; JOBS=1 runs one by one.")
    return int(jobs)


def jobs_here(params: dict[str, Any]) -> int:
    """How many stages of a run with these params the cores of this machine have room for."""
    run = load_section(params, "run", RunParams, str(PARAMS_FILE))
    if run.cluster.asked().kind != "none" or any(uses_gpu(params.get(method)) for method in METHODS):
        return 1
    logical = len(os.sched_getaffinity(0))
    return max(1, min(logical, psutil.cpu_count(logical=False) or logical) // run.threads)


if __name__ == "__main__":
    cli.run(app)
