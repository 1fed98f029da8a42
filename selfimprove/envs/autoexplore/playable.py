"""Selects AutoExplore's playable tasks: a teacher's or a file's after filtering, or generated from the repositories."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.autoexplore.tasks import Task, Unplayable, filter_tasks, read_tasks, unplayable
from selfimprove.envs.labels import LABELS


class Playable(NamedTuple):
    """The tasks. ``read``: number of tasks from a file or teacher; ``dropped``: how many were dropped, by reason."""

    tasks: list[Task]
    read: int = 0
    dropped: Mapping[Unplayable, int] = MappingProxyType({})


def playable_tasks(env: Any, file: Path | None = None, asked: Sequence[Task] | None = None) -> Playable:
    """A teacher's tasks (``asked``) or a file's, filtered and merged; without either, generated from templates.

    Given tasks that cannot be played are dropped and counted, as in the original. ``env``: an ``AutoExploreParams``.

    Raises:
        UserError: there is nothing to explore, no task is left, or the file is missing or malformed.
    """
    repos = env.repositories()
    if asked is None and file is not None:
        asked = read_tasks(file)
    if asked is None:
        found = Playable(env.template_tasks(repos))
    else:
        most = len(LABELS[env.labels])
        dropped = Counter(why for task in asked if (why := unplayable(task, repos, most)))
        found = Playable(filter_tasks(asked, repos, most), len(asked), dict(sorted(dropped.items())))
    if not found.tasks:
        source = file or ", ".join(sorted(repos))
        raise UserError(
            f"reflect_rl.tasks: no task of {source} can be played, because repositories or targets are missing; name "
            "other tasks, or set reflect_rl.env.repos to the repositories of the tasks."
        )
    return found


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write the original's task file: a JSON list. ``trajectories`` are always there: the original reads them."""
    rows = [task.model_dump(mode="json", exclude_defaults=True) for task in tasks]
    rows = [{**row, "trajectories": row.get("trajectories", [])} for row in rows]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
