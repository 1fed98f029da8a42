"""Environments for tests of labelled actions: AutoExplore over a small repository, and all three together."""

from __future__ import annotations

from pathlib import Path

from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.registry import listed_env
from tests.envs.autoexplore.conftest import FILES, plant, task_for

TARGETS = ("core/hub.py", "README.md", "core/deep/wire format.py", "settings.yaml")
OTHERS = {"core/bus.py": "# A bus that nobody takes.\n" * 20, "core/log.py": "# What was logged.\n" * 20}


def explore(folder: Path, **params: object) -> EnumeratedEnv:
    """AutoExplore over a small repository, with tasks at three depths."""
    plant(folder / "repo/eventlib", FILES | OTHERS)
    write_tasks(folder / TASKS_FILE, [task_for(target) for target in TARGETS])
    fields = {"name": "autoexplore", "repos": str(folder / "repo")} | params
    return listed_env(**fields).make(folder, training="leaveout_prob" in params)


def all_three(folder: Path, **params: object) -> list[EnumeratedEnv]:
    """All three environments, with the same additional params."""
    taxi = listed_env(**params).make()
    return [
        taxi,
        listed_env(**{"name": "alfworld"} | params).make(),
        explore(folder, **params),
    ]
