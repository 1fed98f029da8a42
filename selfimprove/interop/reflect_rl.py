"""Exports the stages' files to the original's formats, and imports the original's files (docs/reflect-rl.md, L49).

    python -m selfimprove.interop.reflect_rl tasks        data/reflect_rl/tasks trajectories.jsonl train.json
    python -m selfimprove.interop.reflect_rl trajectories trajectories.jsonl taxi.json
    python -m selfimprove.interop.reflect_rl sft          base/train/sft_policy.jsonl sft_policy.jsonl
    python -m selfimprove.interop.reflect_rl import-sft   sft_policy.jsonl examples.jsonl
    python -m selfimprove.interop.reflect_rl logs         results/reflect_rl/reflect_rl/log.jsonl logs.json
    python -m selfimprove.interop.reflect_rl run          results/reflect_rl/reflect_rl/log.jsonl original/results
    python -m selfimprove.interop.reflect_rl clean        results/012_rl_finetune
    python -m selfimprove.interop.reflect_rl curves       results/012_rl_finetune curves.csv
    python -m selfimprove.interop.reflect_rl filter-repo  repos repos_filtered
    python -m selfimprove.interop.reflect_rl split        data.json tasks_split

=============  ======================================================================================================
tasks          AutoExplore's task list, each task with its trajectories: {reflection, cmd} per step
trajectories   Taxi's and ALFWorld's list: {state, reflection, action, reason, model, (ALFWorld) problem} per state
sft            one row per step: {"text": prompt and answer concatenated}
logs           {iter, loss: [current, replay], critic_loss, cost, succ, log: [{batch, detail: [...]}]} per iteration
run            a folder of the original's with the next free number: setting.yml, checkpoint-K/logs.json
clean          deletes the weights of all checkpoints of one of the original's runs but the newest
curves         success, cost and loss by optimiser step of the original's runs, joined to their ancestors' curves
filter-repo    copies of the explorable files, one folder per repository; dropped files are counted
split          train.json, validate.json and test.json of one list of tasks, 7:2:1
=============  ======================================================================================================
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError
from selfimprove.core.publish import aside, write_json, write_text
from selfimprove.core.records import Example, Message, read_jsonl, read_rows, write_jsonl, write_rows
from selfimprove.core.tables import write_csv
from selfimprove.envs.alfworld.games import TYPES
from selfimprove.envs.alfworld.kitchen_things import SENTENCES
from selfimprove.envs.autoexplore.inventory import filter_repo
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.autoexplore.sandbox import shown
from selfimprove.envs.autoexplore.tasks import OriginalTrajectory, Reflected, Task, read_tasks, split_tasks
from selfimprove.interop.reflect_rl_runs import clean_checkpoints, next_run
from selfimprove.methods.reflect_rl.convert import trained_steps
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory
from selfimprove.methods.reflect_rl.logs import WINDOW, curve_rows, read_original, smoothed, stitch
from selfimprove.methods.reflect_rl.prompts import MARKERS, Markers, MarkerStyle
from selfimprove.methods.reflect_rl.tasks import SPLITS
from selfimprove.methods.splits import load_split

_TASK = re.compile(r"^Your task is to: (.+)\.$", re.MULTILINE)


def tasks_with_trajectories(tasks: Sequence[Task], trajectories: Iterable[TeacherTrajectory]) -> list[Task]:
    """AutoExplore's tasks with their trajectories; a negative's wrong action is a step without a reflection.

    Failed trajectories are left out: the original trains on the last step of every negative, which would be the wrong
    action if the teacher gave no correction.
    Trajectories that a task already had in its file come first; each negative after them gets an unused number.

    Raises:
        UserError: a trajectory belongs to another environment, or to none of the tasks.
    """
    told: dict[int, list[OriginalTrajectory]] = {}
    for one in trajectories:
        if one.env != "autoexplore" or not 0 <= one.task_id < len(tasks):
            raise UserError(
                f"trajectory {one.id} belongs to no task of the list; export it with the tasks it was generated from."
            )
        if one.status != "solved":
            continue
        steps = [Reflected(reflection=step.reflection, cmd=step.done or step.command) for step in one.steps]
        told.setdefault(one.task_id, []).append(
            OriginalTrajectory(model_name=one.teacher, filename=one.filename, info=one.info, trajectory=steps)
        )
    return [task.with_trajectories(told.get(i, [])) for i, task in enumerate(tasks)]


def state_rows(trajectories: Iterable[TeacherTrajectory]) -> list[dict[str, Any]]:
    """One row per reflected state that is trained on; ``action`` is the label that the policy learns.

    Raises:
        UserError: a trajectory is AutoExplore's, whose export is ``tasks``.
    """
    rows = []
    for one in trajectories:
        if one.env == "autoexplore":
            raise UserError(f"trajectory {one.id} is from AutoExplore; export it with the command `tasks`.")
        problem = {"problem": game_folder(one)} if one.env == "alfworld" and one.steps else {}
        rows += [
            {
                "state": step.pre + step.post,
                "reflection": step.reflection,
                "action": step.label,
                "reason": "",
                "model": one.teacher,
                **problem,
            }
            for _, step in trained_steps(one)
        ]
    return rows


def game_folder(one: TeacherTrajectory) -> str:
    """The name that ALFWorld gives a game's folder, such as ``pick_and_place_simple-Tomato-None-Microwave-4``.

    The original trains only on states whose ``problem`` contains this name (up to the number) of its tomato games. It
    is made from the task's sentence; if that is not one of ALFWorld's, it is the task's number.
    """
    said = _TASK.search(one.steps[0].pre)
    task = said[1] if said else ""
    for name, kind in TYPES.items():
        for sentence in SENTENCES[kind]:
            if goal := re.fullmatch(sentence.format(thing=r"(\w+)", place=r"(\w+)"), task):
                return f"{name}-{goal[1].capitalize()}-None-{goal[2].capitalize()}-{one.task_id}"
    return str(one.task_id)


def to_text(example: Example) -> dict[str, str]:
    """Prompt and answer concatenated, the original's training text; like the original's, it has no end token.

    Its markers have their leading space also if the set's are stripped: the original finds no others, whatever the
    tokenizer, and masks all of a text in which it finds none.
    """
    text = "".join(message.content for message in example.messages)
    if not example.messages[0].content.endswith(MARKERS["spaced"]):
        for ours, theirs in zip(MARKERS["stripped"], MARKERS["spaced"], strict=True):
            text = text.replace(ours, theirs)
    return {"text": text}


def from_text(row: Mapping[str, Any], where: str, markers: Markers = MARKERS["spaced"]) -> Example:
    """The example of a {"text"} row: the text after the last act or analyse marker is trained on.

    With stripped markers, a space before a marker is taken for a part of the original's marker, and dropped.

    Raises:
        UserError: there is no text, or it has neither marker, so that the loss mask would be empty.
    """
    text = row.get("text")
    if isinstance(text, str) and markers == MARKERS["stripped"]:  # the original writes the spaced ones
        text = text.replace(MARKERS["spaced"].act, markers.act).replace(MARKERS["spaced"].analyse, markers.analyse)
    there = [m for m in (markers.act, markers.analyse) if isinstance(text, str) and m in text]
    if not isinstance(text, str) or not there:
        raise UserError(
            f"{where}: the text contains neither {markers.act.strip()!r} nor {markers.analyse.strip()!r}, which marks "
            "the answer to train on; fix or delete the line."
        )
    marker = max(there, key=text.rfind)  # a file in the prompt may contain the other marker
    prompt, _, answer = text.rpartition(marker)
    messages = [
        Message(role="user", content=prompt + marker),
        Message(role="assistant", content=answer.strip(), weight=1),
    ]
    return Example(id=where, messages=messages)


def log_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An iteration of our log.jsonl in the original's format: counted from 0, log-probabilities exponentiated.

    Raises:
        UserError: the row is not an iteration's.
    """
    try:
        log = [
            {
                "batch": entry["batch"],
                "detail": [
                    {
                        "step": step["step"],
                        "Q_value": step["Q_value"],
                        "prob": _probability(step["logprob"]),
                        "entropy": step["entropy"],
                        "cost": step["cost"],
                        "prompt": step["prompt"],
                        "generation": {"role": "assistant", "content": step["generation"]},
                    }
                    for step in entry["detail"]
                ],
            }
            for entry in row["log"]
        ]
        fresh, replayed = row["loss"]
        numbers = (fresh, replayed, row["critic_loss"], row["cost"], row["succ"])
        if not all(number is None or isinstance(number, int | float) for number in numbers):
            raise ValueError("a loss, cost or success is not a number")
        if type(row["iter"]) is not int or row["iter"] < 1:
            raise ValueError(f"iter is {row['iter']!r}, not a count from 1")
        kept = {key: row[key] for key in ("loss", "critic_loss", "cost", "succ")}
        made = {"iter": row["iter"] - 1, **kept, "log": log}
        json.dumps(made, allow_nan=False)  # 1e999 is parsed as infinity, which cannot be written
        return made
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: not a row of a log.jsonl of reinforcement learning ({error}); fix it.") from None


def _probability(logprob: Any) -> float:
    """Raises: ValueError: it is not the logarithm of a probability."""
    if not isinstance(logprob, float | int) or logprob > 0:
        raise ValueError(f"logprob is {logprob!r}, not a number of at most 0")
    return math.exp(logprob)


MOST_BYTES = 2**30
"""Maximum bytes of a copied file: far larger than any text that is explored."""

app = typer.Typer(add_completion=False, help="Reflect-RL's files in the original's formats.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="output file of a stage (JSONL)")]
Target = Annotated[Path, typer.Argument(help="output file")]


@app.command("tasks")
def export_tasks(
    folder: Annotated[Path, typer.Argument(help="data/reflect_rl/tasks of an AutoExplore run")],
    source: Source,
    target: Target,
    split: Annotated[str, typer.Option(help="export only this split: train, dev or test; default: all tasks")] = "",
) -> None:
    """AutoExplore's tasks with their trajectories, in the format of train.json, validate.json and test.json."""
    tasks = tasks_with_trajectories(read_tasks(folder / TASKS_FILE), read_jsonl(source, TeacherTrajectory))
    if split:
        if split not in SPLITS:
            raise UserError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}.")
        ids = load_split(folder / f"{split}.jsonl", "autoexplore")
        if wrong := [task for task in ids if not 0 <= task < len(tasks)]:
            raise UserError(
                f"{folder / split}.jsonl: there is no task {wrong[0]} among the {len(tasks)} of {TASKS_FILE}; restore "
                "both files."
            )
        tasks = [tasks[task] for task in ids]
    with aside(target) as part:
        write_tasks(part, tasks)


@app.command("trajectories")
def export_trajectories(source: Source, target: Target) -> None:
    """Taxi's or ALFWorld's reflected states as one JSON list."""
    rows = state_rows(read_jsonl(source, TeacherTrajectory))
    if not rows:
        raise UserError(f"{source} contains no state that is trained on; name another, or generate more trajectories.")
    write_json(target, rows)


@app.command("sft")
def export_sft(source: Source, target: Target) -> None:
    """A supervised set as {"text"} rows."""
    rows = [to_text(example) for example in read_jsonl(source, Example)]
    with aside(target) as part:
        write_rows(part, rows)


@app.command("import-sft")
def import_sft(
    source: Source, target: Target, markers: Annotated[str, typer.Option(help="spaced or stripped")] = "spaced"
) -> None:
    """{"text"} rows as a supervised set; texts with an empty answer are left out, as by the original's loss."""
    style: MarkerStyle | None = next((style for style in MARKERS if style == markers), None)
    if style is None:
        raise UserError(f"there are no markers {markers!r}; choose one of {', '.join(MARKERS)}.")
    rows = [from_text(row, f"{source}, line {line}", MARKERS[style]) for line, row in read_rows(source)]
    kept = [example for example in rows if example.messages[-1].content]
    if not kept:
        raise UserError(f"{source}: the answer of every text is empty; name another file.")
    with aside(target) as part:
        write_jsonl(part, kept)
    if len(kept) < len(rows):
        typer.echo(f"left out: {len(rows) - len(kept)} of {len(rows)} texts, whose answer is empty")


@app.command("logs")
def export_logs(source: Source, target: Target) -> None:
    """A run's log as the original's logs.json."""
    write_json(target, [log_row(row, f"{source}, line {line}") for line, row in read_rows(source)])


@app.command("run")
def export_run(
    source: Source,
    target: Annotated[Path, typer.Argument(help="the original's results folder")],
    accumulation: Annotated[int, typer.Option(min=1, help="the run's rl.gradient_accumulation_steps")] = 1,
) -> None:
    """A run's log as a run of the original, numbered after those in its results folder."""
    rows = [log_row(row, f"{source}, line {line}") for line, row in read_rows(source)]
    number = next_run(one.name for one in target.iterdir()) if target.is_dir() else next_run(())
    with aside(target / f"{number}_rl_finetune") as part:
        write_json(part / f"checkpoint-{rows[-1]['iter'] + 1}" / "logs.json", rows)
        write_text(part / "setting.yml", f"gradient_accumulation_steps: {accumulation}\n")
    typer.echo(f"{number}_rl_finetune")


@app.command("clean")
def delete_old_weights(
    folder: Annotated[Path, typer.Argument(help="the original's results/NNN_rl_finetune")],
) -> None:
    """Delete the weights of all checkpoints but the newest that has any."""
    for file in clean_checkpoints(folder):
        typer.echo(f"deleted {shown(str(file))}")


@app.command("filter-repo")
def export_filtered(
    folder: Annotated[Path, typer.Argument(help="a repository, or a folder of repositories")],
    target: Annotated[Path, typer.Argument(help="output folder, which must not exist")],
) -> None:
    """Copy the files of repositories that AutoExplore would explore; reports the dropped files per repository."""
    if target.exists():
        raise UserError(f"{target} already exists; name a new folder.")
    filtered = filter_repo(folder)
    try:
        with aside(target) as part:
            for name, repo in filtered.repos.items():
                for path in repo.tree.folders:  # including empty ones: they are listed during play
                    (part / name / path).mkdir(parents=True, exist_ok=True)
                for path in repo.files:
                    (part / name / path).write_bytes(repo.tree.read(path, MOST_BYTES)[0])
    except OSError as error:
        raise UserError(
            f"{target}: the files cannot be copied ({error}); free some space, or name another folder."
        ) from None
    for row in filtered.rows:
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(row.dropped.items())) or "nothing"
        typer.echo(f"{shown(row.name)}: {row.files} files, {row.bytes} bytes; dropped: {dropped}")


@app.command("split")
def export_split(
    source: Annotated[Path, typer.Argument(help="a JSON list of tasks")],
    target: Annotated[Path, typer.Argument(help="output folder of train.json, validate.json and test.json")],
    seed: Annotated[int, typer.Option(help="seed of the shuffle")] = 0,
) -> None:
    """Split a list of tasks into the original's three files, 7:2:1, by a seeded shuffle."""
    read = {file.resolve() for file in (source.glob("*.json") if source.is_dir() else [source])}
    parts = split_tasks(read_tasks(source), seed)._asdict()
    if lost := [file for name in parts if (file := target / f"{name}.json").resolve() in read]:
        raise UserError(f"{lost[0]} is a file to split, which its own part would replace; name another output folder.")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be created as a folder ({error.strerror}); name another.") from None
    for name, tasks in parts.items():
        with aside(target / f"{name}.json") as part:
            write_tasks(part, tasks)
        typer.echo(f"{name}: {len(tasks)} tasks")


@app.command("curves")
def export_curves(
    folder: Annotated[Path, typer.Argument(help="the original's results/NNN_rl_finetune")],
    target: Target,
    window: Annotated[int, typer.Option(help="window of the centred mean in points; odd")] = WINDOW,
) -> None:
    """Success, cost and loss of a run of the original and its ancestors."""
    folder = Path(os.path.abspath(folder))  # "." has neither a name nor folders beside it
    rows = curve_rows({folder.name: smoothed(stitch(read_original(folder)), window)})
    with aside(target) as part:
        write_csv(part, rows)


if __name__ == "__main__":
    run(app)
