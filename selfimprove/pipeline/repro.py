"""``make repro``: DVC runs the out-of-date stages, one after another or several in parallel (``JOBS=4``).

By default, as many stages run at once as fit into the CPU cores (``run.threads`` each) and the memory. The default is
one if a stage uses a GPU or a server, a large model is trained, or a cluster does the work.
"""

import os
import sys
from typing import Annotated

import typer

from selfimprove.core import cli
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.exp import check_settings
from selfimprove.pipeline.jobs import asked, jobs_here
from selfimprove.pipeline.kernels import environment
from selfimprove.pipeline.params import PARAMS_FILE
from selfimprove.pipeline.warm import PARALLEL

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    goals: Annotated[list[str], typer.Argument(help="DVC stages to bring up to date, as for dvc repro")],
    jobs: Annotated[str, typer.Option(help="number of stages at once; empty: as many as the cores allow")] = "",
    settings: Annotated[
        str,
        typer.Option(
            "--set", help="params, as key=value, to write before the run, which is then saved as a DVC experiment"
        ),
    ] = "",
) -> None:
    """Run the stages that are out of date."""
    params = check_settings(settings) if settings else read_yaml(PARAMS_FILE)
    count = asked(jobs) if jobs else jobs_here(params)
    if count > 1:
        print(f"up to {count} stages at once (JOBS=1: one after another)", flush=True)
    if settings:
        os.environ.update(environment(params["run"]["kernels"]))  # the helper starts before params are written
        how = [*PARALLEL, str(count), f"--set={settings}"]
    else:
        how = [*PARALLEL, str(count)] if count > 1 else ["dvc", "repro"]
    os.execv(sys.executable, [sys.executable, "-m", "selfimprove.pipeline.warm", *how, *goals])


if __name__ == "__main__":
    cli.run(app)
