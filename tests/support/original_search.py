"""Agent-R's search as in the original: every step replays the world, and samples are requested one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from selfimprove.engines.base import Completion, Request
from selfimprove.envs.interface import AgentEnv, Step
from tests.support.recorded import Recorded


@dataclass(frozen=True)
class Rebuilt:
    """A world whose state is (task, actions so far): every step resets the environment and replays them."""

    env: AgentEnv

    @property
    def name(self) -> str:
        """The environment's."""
        return self.env.name

    @property
    def instruction(self) -> str:
        """The environment's."""
        return self.env.instruction

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """See ``World``."""
        return (task_id, ()), self.env.reset(task_id)

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """See ``World``."""
        task_id, actions = state
        self.env.reset(task_id)
        for done in actions:
            self.env.step(done)
        return (task_id, (*actions, action)), self.env.step(action)

    async def close(self) -> None:
        """Nothing to release."""


class OneByOne(Recorded):
    """An engine that requests one sample at a time."""

    async def generate(self, request: Request) -> list[Completion]:
        """The same samples as a single request, if the inner engine's results do not depend on the batch size."""
        first = request.seed.sample
        singles = [replace(request, n=1, seed=request.seed.at(first + i)) for i in range(request.n)]
        return [(await self.inner.generate(single))[0] for single in singles]
