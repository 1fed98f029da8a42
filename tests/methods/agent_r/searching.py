"""Search in the corridor: two tasks, a scripted engine, and environments that fail or return raw scores."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from selfimprove.core.seeds import rng
from selfimprove.engines.base import EngineError
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.interface import EmbeddedWorld, EnvError
from selfimprove.methods.agent_r.params import SearchParams
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.corridor import Corridor

NEAR = 0  # the key and the door in room 0: two actions solve it
FAR = 8  # the key in room 1, the door in room 3
ACTIONS = ("right", "left", "take key", "open door", "jump", "look", "wait")


def said(action: str) -> str:
    return f"Thought: So be it.\nAction: {action}"


class Script:
    """An engine whose reply is a function of (request, sample index). It records its requests."""

    def __init__(self, answer: Any = None, *, failing: Any = lambda request: False) -> None:
        self.answer, self.failing = answer or self.roll, failing
        self.asked: list[Any] = []
        self.engine = ScriptedEngine(lambda request, index: self.answer(request, index))
        self.stats = self.engine.stats

    @staticmethod
    def roll(request: Any, index: Any) -> Any:
        """A random action, drawn from the sample's own noise."""
        return said(rng(request.seed.at(index).bits()).choice(ACTIONS))

    async def generate(self, request: Any) -> Any:
        self.asked.append(request)
        if self.failing(request):
            raise EngineError("the endpoint died")
        return await self.engine.generate(request)

    def fits(self, messages: Any, max_tokens: Any) -> bool:
        return True

    async def close(self) -> None:
        await self.engine.close()


class Cut(Script):
    """An engine whose replies have token ids and are all cut by the limit of new tokens."""

    async def generate(self, request: Any) -> Any:
        return [replace(one, finish="length", token_ids=[7, 8]) for one in await super().generate(request)]


def params(**changes: Any) -> SearchParams:
    return SearchParams(**({"tasks": 1, "max_depth": 4, "dives": 3, "n_gen": 3} | changes))


def grow(task: Any, actor: Any = None, cfg: Any = None, *, env: Any = None, seed: int = 0, prior: Any = ()) -> Tree:
    world = EmbeddedWorld(env or Corridor())
    return asyncio.run(search(task, world, actor or Script(), cfg or params(), seed, prior))


def scripted(*samples: str) -> Script:
    """An engine that returns the same samples at every node."""
    return Script(lambda request, index: said(samples[index]))


class Raw(Corridor):
    """Returns raw scores, including negative ones, as remote servers may."""

    def step(self, action: str) -> Any:
        step = super().step(action)
        return step._replace(reward=step.info["raw_score"] / 100, done=False, info={})


class Failing(Corridor):
    """Fails permanently at step ``at`` (from 0), or at the reset if ``at`` is negative."""

    def __init__(self, at: Any) -> None:
        super().__init__()
        self.at = at

    def step(self, action: str) -> Any:
        if self.steps == self.at:
            raise EnvError("the server forgot the episode")
        return super().step(action)

    def reset(self, task_id: Any) -> Any:
        if self.at < 0:
            raise EnvError("the server is away")
        return super().reset(task_id)
