"""For the tests of worlds by replay: a bakery, live copies of it that are counted, and a walk through it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step, World
from selfimprove.envs.replay import ReplayWorld, Slot

ACTIONS = ("get 1 flour", "get 1 water", "mix", "bake", "inventory", "sing", "drop")


class Bakery:
    """A very small world: bread is baked dough, dough is flour and water; task n requires n + 1 loaves."""

    name = "bakery"
    instruction = "Bake bread."

    def __init__(self) -> None:
        self.task, self.flour, self.water, self.dough, self.bread, self.log = 0, 0, 0, 0, 0, ""

    def task_ids(self) -> Sequence[int]:
        return range(5)

    def reset(self, task_id: int) -> str:
        if task_id not in self.task_ids():
            raise UserError(f"bakery has no task {task_id}; there are 0 to 4.")
        self.__init__()  # type: ignore[misc]
        self.task = task_id
        return f"Goal: bake {task_id + 1} bread."

    def step(self, action: str) -> Step:
        self.log += action[0]
        valid = action in self.valid_actions()
        if valid and action.startswith("get"):
            self.flour, self.water = self.flour + ("flour" in action), self.water + ("water" in action)
        elif valid and action == "mix":
            self.flour, self.water, self.dough = self.flour - 1, self.water - 1, self.dough + 1
        elif valid and action == "bake":
            self.dough, self.bread = self.dough - 1, self.bread + 1
        elif valid and action == "drop":
            self.flour, self.water, self.dough = 0, 0, 0
        done = self.bread == self.task + 1
        said = f"{'Done' if valid else 'Could not'}: {action}; {self.log}" + str(vars(self)) * (action == "inventory")
        return Step(said, float(done), done, {"raw_score": float(done), "valid": valid, "disaster": False})

    def snapshot(self) -> Any:
        return tuple(vars(self).items())

    def restore(self, snapshot: Any) -> None:
        vars(self).update(dict(snapshot))

    def valid_actions(self) -> list[str]:
        able = {"mix": self.flour > 0 and self.water > 0, "bake": self.dough > 0, "sing": False}
        return sorted(action for action in ACTIONS if able.get(action, True))

    def expert(self) -> list[Move]:
        loaf = [Move("Bread needs flour.", a) for a in ("get 1 flour", "get 1 water", "mix", "bake")]
        return loaf * (self.task + 1 - self.bread)


@dataclass
class Copies:
    """Creates slots over Bakery and counts them and their calls.

    ``before`` runs before every call and may fail or wait; ``answer`` may change what a call returns.
    """

    before: Callable[[int, str], Awaitable[None]] | None = None
    answer: Callable[[Any], Any] = lambda given: given
    made: int = 0
    live: int = 0
    most: int = 0
    calls: list[tuple[int, str]] = field(default_factory=list)

    async def make(self) -> Slot:
        self.made += 1
        self.live += 1
        self.most = max(self.most, self.live)
        return Copy(self, self.made)

    def of(self, number: int) -> list[str]:
        return [call for copy, call in self.calls if copy == number]


class Copy:
    def __init__(self, copies: Copies, number: int) -> None:
        self.copies, self.number, self.env, self.open, self.busy = copies, number, Bakery(), True, False

    async def _call(self, call: str) -> None:
        assert not self.busy, "one call at a time"
        self.busy = True
        try:
            await asyncio.sleep(0)
            if self.copies.before is not None:
                await self.copies.before(self.number, call)
        finally:
            self.busy = False
        self.copies.calls.append((self.number, call))

    async def reset(self, task_id: int) -> str:
        await self._call(f"reset {task_id}")
        return self.copies.answer(self.env.reset(task_id))

    async def step(self, action: str) -> Step:
        step = self.env.step(action)
        await self._call(action)  # a call that is cancelled or fails here has acted, but its result is lost
        return self.copies.answer(step)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.copies.live -= self.open
        self.open = False


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run with a time limit, so that a deadlock fails the test instead of hanging it."""
    return asyncio.run(asyncio.wait_for(work, 20))


def bakery(copies: Copies, slots: int) -> ReplayWorld:
    return ReplayWorld("bakery", Bakery.instruction, copies.make, slots)


async def walk(world: World, *actions: str, task: int = 0) -> Any:
    """The state after these actions."""
    state, _ = await world.reset(task)
    for action in actions:
        state, _ = await world.step(state, action)
    return state
