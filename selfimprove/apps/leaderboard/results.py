"""Results of leaderboard evaluations, ``results/leaderboard/<model>.json``, and the table of all such files.

A file contains a model's metrics by task and is rewritten atomically after every task, so that an interrupted
evaluation resumes with the next task. A file never mixes metrics of different weights, settings or harness versions:
its ``key`` is derived from these.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from rich import box
from rich.table import Table

from selfimprove.apps.leaderboard.suite import LEADERBOARD, LOCAL, PUBLISHED, LeaderboardTask
from selfimprove.core.errors import UserError, fault
from selfimprove.core.publish import write_json
from selfimprove.core.records import Record
from selfimprove.core.sources import sha256_of

FOLDER = Path("results/leaderboard")
MISSING = "–"
REBUILD = "delete .venvs/leaderboard and run `make env-leaderboard`, which installs the locked version"
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(@[\w./-]+)?")


class Metric(Record):
    """One task's result; ``value`` and its standard error are fractions in [0, 1]."""

    value: float = Field(ge=0, le=1)
    stderr: float | None
    n: int = Field(ge=1)
    few_shot: int
    metric: str
    versions: dict[str, float | int | str | None]
    """The harness's version of each task that contributes to the metric (57 for MMLU)."""


class Settings(Record):
    """What a metric depends on besides the model's weights."""

    harness: str
    transformers: str
    dtype: str
    batch_size: int
    limit: int | None


class Results(Record):
    """A model's metrics."""

    model: str
    key: str
    settings: Settings
    tasks: dict[str, Metric] = Field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Mean of the six in [0, 1]; None if one of them is missing or was evaluated only in part (``limit``)."""
        if self.missing or self.settings.limit is not None:
            return None
        return sum(self.tasks[task.name].value for task in LEADERBOARD) / len(LEADERBOARD)

    @property
    def missing(self) -> list[str]:
        """The names of the six tasks that have no metric yet."""
        return [task.name for task in LEADERBOARD if task.name not in self.tasks]


def parse_metric(task: LeaderboardTask, results: Mapping[str, Any]) -> Metric:
    """Extract a task's metric from the harness's results.

    Raises:
        UserError: the task or metric is missing, or the number of examples in the prompt is wrong.
    """
    found = results["results"].get(task.name, {})
    if task.key not in found:
        raise UserError(
            f"lm-evaluation-harness gave no {task.key} for {task.name} (it gave: "
            f"{', '.join(sorted(found)) or 'nothing'}); {REBUILD}."
        )
    members = _members(task.name, results.get("group_subtasks", {}))
    shots = {results["n-shot"][member] for member in members}
    if shots != {task.few_shot}:
        raise UserError(
            f"lm-evaluation-harness evaluated {task.name} with {', '.join(map(str, sorted(shots)))} examples where "
            f"{task.few_shot} belong; {REBUILD}."
        )
    stderr = found.get(f"{task.metric}_stderr,{task.filter}")
    return Metric(
        value=float(found[task.key]),
        stderr=float(stderr) if isinstance(stderr, int | float) else None,
        n=sum(int(results["n-samples"][member]["effective"]) for member in members),
        few_shot=task.few_shot,
        metric=task.key,
        versions={member: results["versions"].get(member) for member in members},
    )


def _members(name: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks below a group, or the task itself."""
    below = groups.get(name) or []
    return sorted(leaf for member in below for leaf in _members(member, groups)) if below else [name]


def label(model: str) -> str:
    """The file name for a model: ``models/rise/base`` is ``rise--base``, ``org/name@v1`` is ``org--name@v1``."""
    parts = [part for part in Path(model).parts if part not in ("/", ".", "..")]
    if len(parts) > 1 and parts[0] == "models":
        parts = parts[1:]
    return re.sub(r"[^\w.@+-]", "-", "--".join(parts))


def key_of(fingerprint: str, settings: Settings) -> str:
    """Identifies a model's weights in combination with settings."""
    text = json.dumps([fingerprint, settings.model_dump()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_folder(model: str) -> bool:
    """Whether the model is a folder; otherwise it is a model of the hub.

    Raises:
        UserError: the folder contains no model, or it does not exist and the name is not valid on the hub.
    """
    folder = Path(model)
    if not folder.exists():
        if model.startswith("models/") or not HUB_NAME.fullmatch(model):
            raise UserError(
                f"MODEL={model}: this folder does not exist; name an existing folder, or a hub model as "
                "<owner>/<name>[@revision]."
            )
        return False
    if not (folder / "config.json").is_file():
        raise UserError(
            f"MODEL={folder} is a folder without a config.json; name a model folder (models/<method>/<name>) or a "
            "hub model."
        )
    return True


def fingerprint(model: str) -> str | None:
    """SHA-256 over names and contents of a model folder's files; None for a hub model, which its commit identifies.

    Raises:
        UserError: see ``is_folder``.
    """
    if not is_folder(model):
        return None
    digest = hashlib.sha256()
    for file in sorted(path for path in Path(model).iterdir() if path.is_file()):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def read(path: Path) -> Results:
    """Read a results file.

    Raises:
        UserError: the file is damaged or has another format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Results.model_validate({name: value for name, value in data.items() if name != "mean"})
    except (ValidationError, ValueError, AttributeError, RecursionError) as error:
        wrong = fault(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"{path} is not a leaderboard result ({wrong}); delete it and evaluate the model again."
        ) from None


def write(results: Results, folder: Path = FOLDER) -> Path:
    """Write a model's file atomically, including the mean; returns its path."""
    path = folder / f"{label(results.model)}.json"
    _write(path, results)
    return path


def set_aside(results: Results, folder: Path = FOLDER) -> Path:
    """Write results to a file that the table ignores, named by their key, and return its path.

    Tasks that an earlier call wrote there stay.
    """
    path = folder / f"{label(results.model)}.{results.key}.old"
    earlier = read(path).tasks if path.is_file() else {}
    _write(path, results.model_copy(update={"tasks": {**earlier, **results.tasks}}))
    return path


def _write(path: Path, results: Results) -> None:
    write_json(path, results.model_dump() | {"mean": results.mean})


def table(found: Sequence[Results]) -> Table:
    """Models × tasks, in percent ± standard error; the paper's rows below if any of the six tasks was evaluated."""
    asked = {name for results in found for name in results.tasks}
    six = any(task.name in asked for task in LEADERBOARD)
    columns = [*(LEADERBOARD if six else ()), *(task for task in LOCAL if task.name in asked)]
    out = Table(title="leaderboard: percent ± standard error", box=box.SIMPLE, padding=(0, 1, 0, 0))
    out.title_justify = out.caption_justify = "left"
    out.add_column("model", no_wrap=True)
    for task in columns:
        out.add_column(task.title, justify="right", no_wrap=True)
    if six:
        out.add_column("mean of six", justify="right", no_wrap=True)
    notes = []
    for results in sorted(found, key=lambda results: label(results.model)):
        cells = [_cell(results.tasks.get(task.name)) for task in columns]
        mean = [MISSING if results.mean is None else f"{100 * results.mean:.2f}"] if six else []
        part = "" if results.settings.limit is None else "*"
        if part:
            notes.append(f"* only the first {results.settings.limit} questions of each task: no result to report")
        out.add_row(label(results.model) + part, *cells, *mean)
    if six:
        for name, metrics in PUBLISHED.items():
            given = dict(zip(LEADERBOARD, metrics, strict=True))
            cells = [f"{given[task]:.2f}" if task in given else MISSING for task in columns]
            out.add_row(name, *cells, f"{sum(metrics) / len(metrics):.2f}", style="dim")
    notes += [f"{task.title}: {task.key}, {task.few_shot} examples" for task in columns]
    out.caption = "\n".join(dict.fromkeys(notes))
    return out


def _cell(metric: Metric | None) -> str:
    if metric is None:
        return MISSING
    error = "" if metric.stderr is None else f"±{100 * metric.stderr:.1f}"
    return f"{100 * metric.value:.2f}{error}"
