"""A small environment with labels, for tests: walk a corridor to its end::

task 2, at 0
pick:
0. left
1. right
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from selfimprove.envs.interface import Last, Played, State


class Corridor:
    """Implements ``EnumeratedEnv``. Task t ends at cell t + 1; every step costs 0.5, but the one to the end costs -2.

    Level "near" contains the tasks below 3, "far" all others. ``costs`` overrides the costs of labels.
    """

    name = "corridor"
    instruction = "Walk. "
    decisive = ""

    def __init__(self, max_turns: int = 4, labels: tuple[str, ...] = ("0", "1", "2"), tasks: int = 8) -> None:
        self.max_turns, self.labels, self._tasks = max_turns, labels, tasks
        self.levels: tuple[str, ...] = ("near", "far")
        self.costs: dict[str, float] = {}
        self._now: tuple[int, int, int, int] = (0, 0, 0, 0)  # task, cell, steps, episode

    def task_ids(self, split: Any = None) -> Sequence[int]:
        return range(self._tasks)

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        return [task for task in tasks if (task < 3) == (level == "near")]

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        self._now = (task_id, 0, 0, episode)
        return self.state()

    def state(self) -> State:
        task, cell, _, _ = self._now
        listed = self.commands()
        post = "\npick:" + "".join(f"\n{label}. {command}" for label, command in listed.items())
        return State(f"task {task}, at {cell}", post, tuple(listed))

    def commands(self) -> dict[str, str]:
        task, cell, steps, _ = self._now
        if cell > task or steps >= self.max_turns:
            return {}
        return dict(zip(self.labels, ("left", "right"), strict=False))

    def step(self, label: str) -> Played:
        task, cell, steps, episode = self._now
        command = self.commands().get(label)
        cell = max(0, cell - 1) if command == "left" else cell + (command == "right")
        self._now = (task, cell, steps + 1, episode)
        done = cell > task
        cost = self.costs.get(label, 0.5 - 2.5 * done)
        return Played(cost, done or steps + 1 >= self.max_turns, done, command is not None, f"at {cell}")

    def oracle(self) -> list[str]:
        return ["right"] * (self._now[0] + 1 - self._now[1])

    def explain(self, last: Last | None, *key: object) -> str:
        return f"{len(self.oracle())} cells are left"

    def reveals(self, text: str) -> bool:
        return "right" in text

    def snapshot(self) -> Any:
        return self._now

    def restore(self, snapshot: Any) -> None:
        self._now = snapshot

    def copy(self) -> Corridor:
        return copy.copy(self)


class DeadEnd(Corridor):
    """A corridor without actions in cell 1."""

    def commands(self) -> dict[str, str]:
        return {} if self._now[1] == 1 else super().commands()


def nan_cost() -> Corridor:
    """A corridor whose action 1 costs NaN."""
    env = Corridor()
    env.costs = {"1": math.nan}
    return env
