"""``make leaderboard MODEL=…``: evaluates a model on the Open LLM Leaderboard's six tasks (docs/spin.md, S41).

    make leaderboard MODEL=models/spin/iter3        # the six; the local tasks if their data is not available
    make leaderboard MODEL=org/name@revision TASKS=leaderboard ARGS="--dtype bfloat16 --batch-size 16"
    make leaderboard MODEL=models/rise/base TASKS=local

Writes ``results/leaderboard/<model>.json`` after every task, so that an interrupted evaluation resumes, and prints the
table of all models evaluated so far. As on the leaderboard, prompts are plain text without a chat template.
"""

import sys
from typing import Annotated

import typer
from rich.console import Console

from selfimprove.apps.leaderboard import results as files
from selfimprove.apps.leaderboard.suite import AUTO, LOCAL, select
from selfimprove.core.cli import run

app = typer.Typer(
    add_completion=False, help="Evaluate a model on the Open LLM Leaderboard's six tasks, or on local ones."
)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="a model folder, or a hub model: <owner>/<name>[@revision]")],
    tasks: Annotated[str, typer.Option(help="auto, leaderboard, local, or a comma-separated list of tasks")] = AUTO,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; null: a GPU if there is one")] = None,
    dtype: Annotated[str, typer.Option(help="auto (the model's own), float32, bfloat16, float16")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="questions per batch")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, help="use only the first N questions of each task, for a trial")
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--only-check", help="only check that the model and the tasks exist")
    ] = False,
) -> None:
    """Evaluate one model, and print the table of all evaluated models."""
    from selfimprove.apps.leaderboard import harness

    chosen = select(tasks)
    of_hub = not files.is_folder(model)  # a missing model is reported before anything is downloaded
    harness.go_offline_unless_the_hub_answers()
    if of_hub:
        harness.check_hub(model)
    if only_check:
        return
    try:
        loaded = harness.load_tasks(chosen)
    except harness.DataMissingError as error:
        if tasks != AUTO:
            raise
        print(f"Using the local tasks instead of the leaderboard's six: {error}")
        chosen = LOCAL
        loaded = harness.load_tasks(chosen)
    found = harness.evaluate(
        model,
        chosen,
        loaded,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        limit=limit,
        folder=files.FOLDER,
        say=print,
    )
    console = Console(width=None if sys.stdout.isatty() else 118)
    console.print(files.table([files.read(path) for path in sorted(files.FOLDER.glob("*.json"))]))
    if found.missing and tasks != "local":
        print(f"no mean of six for {files.label(model)} yet: {', '.join(found.missing)} not evaluated.")


if __name__ == "__main__":
    run(app)
