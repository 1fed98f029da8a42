"""An environment on an OpenEnv server with synchronous calls, for experts, labels and the check at the start.

A task is a number that is passed to ``reset``. A state is the list of actions since then, which are sent again if no
session is in this state. The expert follows a file, or searches over the listed actions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step
from selfimprove.envs.openenv.pool import Pool
from selfimprove.envs.openenv.session import NOTHING
from selfimprove.envs.own import TextEnv
from selfimprove.envs.replay import ReplayState
from selfimprove.envs.splits import HeldOut, Part


class _At(NamedTuple):
    """A state: the replay state, the path of actions without those that had no effect, the observation after it, the
    possible actions, the score, and whether it is the end."""

    state: ReplayState
    path: tuple[str, ...]
    seen: str
    listed: tuple[str, ...] | None
    score: float
    done: bool


class OpenEnv(TextEnv):
    """See the module. Copies share the pool's sessions."""

    def __init__(self, pool: Pool, tasks: int, experts: Mapping[int, Sequence[Move]], search: int) -> None:
        """``experts``: task -> a path to reward 1; empty: paths are searched. ``search``: its maximum states."""
        self.name, self.instruction = pool.name, pool.instruction  # type: ignore[misc]
        self.tasks, self.largest_search = tasks, search
        self._pool, self._experts = pool, experts
        self._at = _At(ReplayState(-1, (), True, 0), (), "", (), 0.0, True)

    def task_ids(self) -> Sequence[int]:
        """See ``AgentEnv``. Tasks with an expert in the file are for training, the others for dev and test."""
        if not self._experts:
            return range(self.tasks)
        others = [task for task in range(self.tasks) if task not in self._experts]
        parts: dict[Part, Sequence[int]] = {"train": sorted(self._experts), "dev": others[::2], "test": others[1::2]}
        return HeldOut(parts, "give env.experts more tasks to train on, or raise env.tasks")

    def begin(self, task_id: int) -> str:
        """See ``TextEnv``."""
        state, seen = self._pool.now(self._pool.current().reset(task_id))
        self._at = _At(state, (), str(seen), getattr(seen, "listed", None), 0.0, False)
        return self._at.seen

    def act(self, action: str) -> tuple[str, float, bool]:
        """See ``TextEnv``."""
        step = self.step(action)
        return step.observation, step.reward, step.done

    def step(self, action: str) -> Step:
        """See ``AgentEnv``; the server decides whether an action is valid."""
        at = self._at
        if at.done:
            return Step(NOTHING, at.score, True, {"raw_score": at.score, "valid": False, "disaster": False})
        state, step = self._pool.now(self._pool.current().step(at.state, action))
        listed = getattr(step.observation, "listed", None)
        said = str(step.observation)
        path, seen = ((*at.path, action), said) if step.info["valid"] else (at.path, at.seen)
        self._at = _At(state, path, seen, listed, step.reward, step.done)
        return step._replace(observation=said)

    def valid_actions(self) -> list[str] | None:
        """See ``AgentEnv``: those listed by the observation, else the configured ones; None for free text."""
        if self._at.done:
            return []
        return None if self._at.listed is None else sorted(self._at.listed)

    def snapshot(self) -> Any:
        """See ``AgentEnv``."""
        return self._at

    def restore(self, snapshot: Any) -> None:
        """See ``AgentEnv``: nothing is sent until the next action."""
        self._at = snapshot

    def expert(self) -> list[Move]:
        """See ``AgentEnv``: the rest of the file's path if followed so far, else a search over listed actions."""
        if self._at.done:
            return []
        way, path = self._experts.get(self._at.state.task_id, ()), self._at.path
        if way and path == tuple(move.action for move in way[: len(path)]):
            return list(way[len(path) :])
        if self._at.listed is None:
            return []
        here, ways = self._at, self._pool.ways
        if (here.state.task_id, path) not in ways:
            states, plan = self._search(here)
            ways.update(((state.state.task_id, state.path), plan[i:]) for i, state in enumerate(states))
            self._at = here
        return [Move("This leads to the goal.", action) for action in ways[here.state.task_id, path]]

    def _apart(self) -> Any:
        """See ``TextEnv``: the observation, since paths differ even if they lead to the same state."""
        return self._at[2:]


def read_experts(rows: Any, where: Any, tasks: int) -> dict[int, list[Move]]:
    """Task -> path, from the rows of a file: {"task": 3, "moves": [{"thought": "…", "action": "…"}, …]}.

    Raises:
        UserError: a row is malformed (the message contains file and line).
    """
    found: dict[int, list[Move]] = {}
    for line, row in rows:
        task, moves = row.get("task"), row.get("moves")
        if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < tasks or task in found:
            raise UserError(
                f"{where}, line {line}: 'task' must be a number below env.tasks ({tasks}) and occur only once; fix or "
                "delete the line."
            )
        if not isinstance(moves, list) or not moves or not all(map(_is_move, moves)):
            raise UserError(
                f"{where}, line {line}: 'moves' must be a list of objects with the strings 'thought' and 'action'; fix "
                "or delete the line."
            )
        found[task] = [Move(move["thought"], move["action"]) for move in moves]
    return found


def _is_move(move: Any) -> bool:
    return isinstance(move, dict) and all(isinstance(move.get(key), str) and move[key] for key in ("thought", "action"))
