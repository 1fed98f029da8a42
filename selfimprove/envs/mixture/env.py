"""Several environments as one: each task belongs to one of them, whose instruction precedes its first observation.

Task ``i`` of environment ``k`` of ``n`` is task ``i * n + k`` here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfimprove.envs.interface import AgentEnv, Move, Step, World
from selfimprove.envs.splits import Shared, with_each

INSTRUCTION = "You act in one of several worlds. What you read next says in which, and how to act there."


def opened(part: AgentEnv | World, observation: str) -> str:
    """The first observation of a task, preceded by the environment's instruction."""
    return f"{part.instruction.strip()}\n\n{observation}"


class Mixture:
    """Implements ``AgentEnv`` over one instance of each environment."""

    instruction = INSTRUCTION

    def __init__(self, name: str, parts: Sequence[AgentEnv], shares: Sequence[float]) -> None:
        self.name, self._parts, self._shares = name, list(parts), list(shares)
        self._now = 0

    def part_of(self, task_id: int) -> str:
        """See ``interface.Mixes``."""
        return self._parts[task_id % len(self._parts)].name

    def part_names(self) -> list[str]:
        """See ``interface.Mixes``."""
        return [part.name for part in self._parts]

    def task_ids(self) -> Shared:
        """Every task; a split gets its share from each environment, from held-out tasks if the environment has some."""
        ids = [with_each(part.task_ids(), partial(self._numbered, k)) for k, part in enumerate(self._parts)]
        return Shared(dict(zip(self.part_names(), ids, strict=True)), self._shares)

    def _numbered(self, k: int, tasks: Sequence[int]) -> list[int]:
        """Tasks of environment ``k``, renumbered."""
        return [task * len(self._parts) + k for task in tasks]

    def reset(self, task_id: int) -> str:
        """See ``AgentEnv``."""
        task, self._now = divmod(task_id, len(self._parts))
        part = self._parts[self._now]
        return opened(part, part.reset(task))

    @property
    def begun_with(self) -> float:
        """The environment's, if it has one (ScienceWorld)."""
        return float(getattr(self._parts[self._now], "begun_with", 0.0))

    def step(self, action: str) -> Step:
        """See ``AgentEnv``."""
        return self._parts[self._now].step(action)

    def valid_actions(self) -> list[str] | None:
        """See ``AgentEnv``."""
        return self._parts[self._now].valid_actions()

    def expert(self) -> list[Move]:
        """See ``AgentEnv``."""
        return self._parts[self._now].expert()

    def snapshot(self) -> Any:
        """See ``AgentEnv``."""
        return self._now, self._parts[self._now].snapshot()

    def restore(self, snapshot: Any) -> None:
        """See ``AgentEnv``."""
        self._now, state = snapshot
        self._parts[self._now].restore(state)


@dataclass(frozen=True)
class MixtureWorld:
    """Implements ``World`` over one world of each environment; a state includes the index of its world."""

    name: str
    parts: tuple[World, ...]
    instruction: str = INSTRUCTION

    def part_of(self, task_id: int) -> str:
        """See ``interface.Mixes``."""
        return self.parts[task_id % len(self.parts)].name

    def part_names(self) -> list[str]:
        """See ``interface.Mixes``."""
        return [part.name for part in self.parts]

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """See ``World``."""
        task, k = divmod(task_id, len(self.parts))
        state, observation = await self.parts[k].reset(task)
        return (k, state), opened(self.parts[k], observation)

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """See ``World``."""
        k, inner = state
        after, step = await self.parts[k].step(inner, action)
        return (k, after), step

    async def close(self) -> None:
        """See ``World``."""
        for part in self.parts:
            await part.close()
