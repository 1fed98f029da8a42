"""AutoExplore's tasks: a question, the file that answers it, and the path to it; filtering, merging, splits, depth.

A task in the original's format (a JSON list)::

    {"question": "Which file defines the class Hub, described as: Forwards events to subscribers?",
     "answer": "core/hub.py defines the class Hub.",
     "optimal_path": ["cd core", "cat hub.py", "id hub.py"],
     "filename": "core/hub.py", "root": "eventlib", "n_level": 1, "model": "template"}

Later steps add ``trajectories`` (docs/reflect-rl.md, L49). ``questions`` generates tasks without a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from selfimprove.core.errors import UserError, fault
from selfimprove.core.records import Record, read_records
from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.actions import LABELS, list_actions
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.sandbox import quoted, unquoted
from selfimprove.envs.autoexplore.tree import View, join

_DROPPED = ("copilot_cmds", "reasons", "reason", "commands_reason", "commands_copilot_cmds", "commands")


Unplayable = Literal["no question", "no such repository", "no such target"]
"""Why a task is dropped. A target must exist, have an explorable suffix, and be reachable by listed actions."""


class Reflected(Record):
    """One step of a trajectory: the reflection and the command. Replayed steps have no reflection."""

    reflection: str
    cmd: str


class OriginalTrajectory(Record):
    """A teacher's trajectory. ``filename``: the file it identified; ``info``: ``positive`` or
    ``negativeK``."""

    model_name: str
    filename: str | None
    info: str
    trajectory: list[Reflected]


def _unquoted_path(path: str) -> str:
    """A path without the quotes that the original writes around names; a folder's own quotes are kept.

    Explorable files never end with a quote, so quotes at the end were added. Quotes around a folder were added if there
    is a space between them, the original's only reason to add them.
    """
    folders, slash, name = path.rpartition("/")
    if unquoted(name) == name and name[-1:] in "'\"":  # the whole path is quoted
        return unquoted(path)
    kept = "/".join(unquoted(folder) if " " in folder else folder for folder in folders.split("/"))
    return f"{kept}{slash}{unquoted(name)}"


class Task(Record):
    """One question about one repository. ``filename`` is the target's path below ``root``, the repository's name.

    The original quotes names with spaces; the quotes are removed here, so that names match. A missing question is "".
    """

    question: Annotated[str, BeforeValidator(lambda text: "" if text is None else text)] = ""
    answer: str
    optimal_path: list[str]
    filename: Annotated[str, AfterValidator(_unquoted_path)]
    root: str
    n_level: int = Field(ge=0)
    model: str
    trajectories: list[OriginalTrajectory] = Field(default=[])

    @property
    def depth(self) -> int:
        """The number of folders above the target, by which the curriculum orders tasks."""
        return self.filename.count("/")

    def targets(self, union: bool = False) -> tuple[str, ...]:
        """The correct files: the original target; with ``union`` also the files that teachers identified.

        The original always adds these, even from negative trajectories, and drops tasks without any, so its tests leak.
        """
        named = {_unquoted_path(t.filename) for t in self.trajectories if t.filename} if union else set()
        return (self.filename, *sorted(named - {self.filename}))

    def with_trajectories(self, more: Iterable[OriginalTrajectory]) -> Task:
        """The task with further trajectories: positives are named ``positive``, negatives get unused numbers."""
        trajectories = list(self.trajectories)
        taken = {one.info for one in trajectories}
        for one in more:
            if one.info.startswith("positive"):
                info = "positive"
            else:
                info = next(name for k in count() if (name := f"negative{k}") not in taken)
            taken.add(info)
            trajectories.append(one.model_copy(update={"info": info}))
        return self.model_copy(update={"trajectories": trajectories})


def optimal_path(filename: str) -> list[str]:
    """The commands from the root to identifying a file: ``cd`` for each folder, ``cat``, ``id``."""
    *folders, name = (quoted(part) for part in filename.split("/"))
    return [*(f"cd {folder}" for folder in folders), f"cat {name}", f"id {name}"]


def reachable(repo: Repo, filename: str, most: int = len(LABELS)) -> bool:
    """Whether a file exists and every step to it is among the first ``most`` actions of its folder."""
    view, folder = View(repo.tree), ""
    if not repo.tree.is_file(filename):
        return False
    for part in filename.split("/")[:-1]:
        if ("cd", part) not in list_actions(view, folder, (), most):
            return False
        folder = join(folder, part)
    return ("id", filename.rpartition("/")[2]) in list_actions(view, folder, (), most)


def unplayable(task: Task, repos: Mapping[str, Repo], most: int = len(LABELS)) -> Unplayable | None:
    """Why a task cannot be played, None if it can; ``most``: maximum listed actions per folder."""
    if not task.question.strip():
        return "no question"
    repo = repos.get(task.root)
    if repo is None:
        return "no such repository"
    return None if reachable(repo, task.filename, most) else "no such target"


def filter_tasks(tasks: Iterable[Task], repos: Mapping[str, Repo], most: int = len(LABELS)) -> list[Task]:
    """Playable tasks, each once, in order of first appearance (docs/reflect-rl.md, L37).

    ``unplayable`` tasks are dropped. In optimal paths, ``ls`` is removed, operands are quoted as listed, and a missing
    ``id`` is appended. Equal tasks are ``merged``.
    """
    return merged(
        task.model_copy(update={"optimal_path": cleaned_path(task.optimal_path, task.filename)})
        for task in tasks
        if not unplayable(task, repos, most)
    )


def merged(tasks: Iterable[Task]) -> list[Task]:
    """The tasks, of which those with the same root, file and question are one.

    The first keeps its fields and receives the others' trajectories, with unused numbers for their negatives.
    """
    found: dict[tuple[str, str, str], Task] = {}
    for task in tasks:
        key = (task.root, task.filename, task.question)
        found[key] = found[key].with_trajectories(task.trajectories) if key in found else task
    return list(found.values())


def cleaned_path(commands: Sequence[str], filename: str) -> list[str]:
    """A path without ``ls``, with operands quoted as listed and ``id`` at the end.

    It is the optimal path if none was given, or if nothing of it is left and the file is not at the root.
    """
    cleaned, parts = [], filename.split("/")
    for command in commands:
        name, _, operand = command.strip().partition(" ")
        bare = operand if operand in parts else unquoted(operand.strip())
        if name and name != "ls":
            cleaned.append(f"{name} {quoted(bare)}" if operand else name)
    if not cleaned and ("/" in filename or not commands):
        return optimal_path(filename)
    if not cleaned or not cleaned[-1].startswith("id "):
        cleaned.append(f"id {quoted(filename.rpartition('/')[2])}")
    return cleaned


class Split(NamedTuple):
    """Three disjoint parts: 70, 20 and 10 per cent."""

    train: list[Task]
    validate: list[Task]
    test: list[Task]


def split_tasks(tasks: Iterable[Task], seed: int) -> Split:
    """Shuffle by the seed and cut at round(0.7 n) and round(0.2 n) more; tasks without a question are skipped.

    Equal tasks are ``merged``, so that no two parts share one: the original's teacher also writes a file with the tasks
    of all others.
    """
    shuffled = merged(task for task in tasks if task.question.strip())
    rng("autoexplore split", seed).shuffle(shuffled)
    train, validate = round(0.7 * len(shuffled)), round(0.2 * len(shuffled))
    return Split(shuffled[:train], shuffled[train : train + validate], shuffled[train + validate :])


def depth_levels(
    tasks: Iterable[Task], merge_first_two: bool = False, merge_after_first_k: int = 3
) -> list[list[Task]]:
    """The depth curriculum: tasks by the depth of their target, shallow first, each once (docs/reflect-rl.md, L34).

    ``merge_first_two`` merges the two shallowest levels; then all after the first ``merge_after_first_k`` are merged.
    """
    buckets: dict[int, list[Task]] = {}
    for task in tasks:
        buckets.setdefault(task.depth, []).append(task)
    levels = [buckets[depth] for depth in sorted(buckets)]
    if merge_first_two and len(levels) > 1:
        levels = [levels[0] + levels[1], *levels[2:]]
    rest = [task for level in levels[merge_after_first_k:] for task in level]
    return [*levels[:merge_after_first_k], *([rest] if rest else [])]


def read_tasks(path: Path) -> list[Task]:
    """Read a file of tasks, ours or the original's (columns that its filter removes are ignored).

    For a folder, read its .json files in the order of their names: the original's teacher writes one per repository.

    Raises:
        UserError: as ``read_records``, a task does not fit the schema (with its position and field), or there is no
            file.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: the folder contains no .json task file; name another.")
    tasks = []
    for place, row in chain.from_iterable(map(read_records, files)):
        kept = {key: value for key, value in row.items() if key not in _DROPPED}
        try:
            tasks.append(Task.model_validate(kept))
        except ValidationError as error:
            raise UserError(f"{place}: {fault(error)}; fix or delete the task.") from None
    return tasks
