"""Worlds by replay (Agent-R checklist row 9): the same tree as by snapshots, over few copies that may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from selfimprove.envs.agent import EmbeddedWorld, EnvError, Move, Step, World
from selfimprove.envs.replay import ReplayWorld, Slot, diverged, replay_figures
from selfimprove.errors import UserError
from selfimprove.seeds import rng

ACTIONS = ("get 1 flour", "get 1 water", "mix", "bake", "inventory", "sing", "drop")


class Bakery:
    """A world small enough to read: bread is baked dough, dough is flour and water; task n wants n + 1 loaves."""

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
    """Makes slots over Bakery and keeps account of them.

    ``before`` runs before every call and may fail or wait; ``answer`` may change what a call gives.
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
        return _Copy(self, self.made)

    def of(self, number: int) -> list[str]:
        return [call for copy, call in self.calls if copy == number]


class _Copy:
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
        await self._call(action)  # whoever is cancelled or fails here has acted, and never learns what came of it
        return self.copies.answer(step)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.copies.live -= self.open
        self.open = False


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """A deadlock is a failure, not a hanging test."""
    return asyncio.run(asyncio.wait_for(work, 20))


def bakery(copies: Copies, slots: int) -> ReplayWorld:
    return ReplayWorld("bakery", Bakery.instruction, copies.make, slots)


async def walk(world: World, *actions: str, task: int = 0) -> Any:
    """The state after some actions."""
    state, _ = await world.reset(task)
    for action in actions:
        state, _ = await world.step(state, action)
    return state


async def grow(world: World, task: int, nodes: int = 40) -> list[Any]:
    """A random tree: every node grows from any earlier one that is not done, its children at once."""
    dice = rng("tree", task)
    state, observation = await world.reset(task)
    states, seen = [state], [observation]
    alive = [0]
    while len(states) < nodes and alive:
        parent = dice.choice(alive[-8:])
        actions = [dice.choice(ACTIONS[:4] * 4 + ACTIONS) for _ in range(3)]
        for state, step in await asyncio.gather(*(world.step(states[parent], action) for action in actions)):
            seen.append((parent, *step))
            alive += [] if step.done else [len(states)]
            states.append(state)
    return seen


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_agent_r_09_trees_by_replay_are_the_trees_by_snapshot(slots: int) -> None:
    copies = Copies()

    async def forest(world: World) -> list[Any]:
        trees = await asyncio.gather(*(grow(world, task) for task in range(5)))
        await world.close()
        return trees

    replayed = run(forest(bakery(copies, slots)))
    assert replayed == run(forest(EmbeddedWorld(Bakery())))
    assert {step[3] for tree in replayed for step in tree[1:]} == {True, False}, "some episodes end"
    assert copies.most <= slots
    assert copies.live == 0


def test_agent_r_09_a_copy_that_stands_there_is_not_replayed() -> None:
    copies = Copies()

    async def work() -> ReplayWorld:
        world = bakery(copies, 3)
        await walk(world, "sing", "mix", "drop")
        return world

    stats = run(work()).stats
    assert copies.calls == [(1, "reset 0"), (1, "sing"), (1, "mix"), (1, "drop")]
    assert (stats.steps, stats.direct, stats.replayed, stats.resets) == (3, 3, 0, 1)


def test_agent_r_09_a_copy_on_the_way_plays_only_the_rest() -> None:
    copies = Copies()

    async def work() -> ReplayWorld:
        world = bakery(copies, 2)
        far = await walk(world, "sing", "mix", "drop")  # copy 1
        near = await walk(world, "sing")  # copy 2 stands two actions before `far`
        await world.step(far, "bake")  # copy 1 leaves it
        _, step = await world.step(far, "inventory")  # copy 2: the shorter way, no reset
        assert "'log': 'smdi'" in step.observation
        await world.step(near, "bake")  # nobody stands before it any more: the longest unused one is reset
        return world

    stats = run(work()).stats
    assert copies.of(2) == ["reset 0", "sing", "mix", "drop", "inventory"]
    assert copies.of(1) == ["reset 0", "sing", "mix", "drop", "bake", "reset 0", "sing", "bake"]
    assert (stats.steps, stats.direct, stats.replayed, stats.resets) == (7, 5, 3, 3)


def test_agent_r_09_the_nearest_copy_goes_and_another_task_is_no_way() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 4)
        far = await walk(world, "sing", "mix", "drop")
        await walk(world, "sing")
        await walk(world, "sing", "mix")
        await walk(world, "sing", "mix", "drop", task=1)
        await world.step(far, "bake")
        await world.step(far, "bake")

    run(work())
    assert copies.of(2) == ["reset 0", "sing", "mix", "drop", "bake"]
    assert copies.of(4) == ["reset 1", "sing", "mix", "drop"], "the same actions in another task lead elsewhere"


def test_agent_r_09_a_failed_copy_is_replaced_and_the_state_replayed() -> None:
    async def before(copy: int, call: str) -> None:
        if (copy, call) == (1, "mix"):
            raise EnvError("forgotten")

    copies = Copies(before)

    async def work() -> tuple[Step, ReplayWorld]:
        world = bakery(copies, 1)
        state = await walk(world, "get 1 flour", "get 1 water")
        _, step = await world.step(state, "mix")
        return step, world

    step, world = run(work())
    assert step.observation == "Done: mix; ggm"
    assert copies.of(2) == ["reset 0", "get 1 flour", "get 1 water", "mix"]
    assert (world.stats.failures, world.stats.replayed, copies.live) == (1, 2, 1)


def test_agent_r_09_a_second_failure_ends_the_episode_and_no_other() -> None:
    async def before(copy: int, call: str) -> None:
        if call == "mix":
            raise EnvError(f"copy {copy} broke")

    copies = Copies(before)

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "sing", task=3)
        other = await walk(world, "sing", task=2)
        with pytest.raises(EnvError, match=r"bakery: task 3, action 2 \('mix'\): .*on a fresh copy: copy 2 broke"):
            await world.step(state, "mix")
        await world.step(other, "bake")
        await world.step(state, "bake")
        await world.close()

    run(work())
    assert (copies.most, copies.live) == (1, 0)


def test_agent_r_09_what_a_user_can_mend_is_not_tried_again() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        with pytest.raises(UserError, match="no task 77"):
            await world.reset(77)
        assert copies.calls == [(1, "reset 77")]
        await walk(world, "sing")
        await world.close()

    run(work())
    assert copies.live == 0


def test_agent_r_09_a_copy_that_cannot_be_made_is_tried_once_more() -> None:
    copies, tries = Copies(), []

    async def make() -> Slot:
        tries.append(1)
        if len(tries) != 2:
            raise EnvError("no room")
        return await copies.make()

    async def work() -> None:
        world = ReplayWorld("bakery", "", make, 1)
        state = await walk(world, "sing")
        await world.close()
        with pytest.raises(EnvError, match="closed"):
            await world.step(state, "sing")

    run(work())
    assert len(tries) == 2


def test_agent_r_09_waiting_calls_are_served_in_order_and_a_slow_copy_delays_none_of_them() -> None:
    gate = asyncio.Event()
    order: list[int] = []

    async def before(copy: int, call: str) -> None:
        if call == "reset 4":
            await gate.wait()
        elif call.startswith("reset"):
            order.append(int(call.split()[1]))

    copies = Copies(before)

    async def work() -> None:
        world = bakery(copies, 2)
        slow = asyncio.create_task(world.reset(4))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(world.reset(task) for task in (2, 0, 3, 1, 0, 2)))
        assert not slow.done()
        gate.set()
        await slow
        await world.close()

    run(work())
    assert order == [2, 0, 3, 1, 0, 2]


@pytest.mark.parametrize("hops", range(12))
def test_agent_r_09_a_cancelled_call_keeps_no_place_and_its_copy_is_not_trusted(hops: int) -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "get 1 flour", "get 1 water")
        calls = [asyncio.create_task(world.step(state, action)) for action in ("mix", "drop", "sing", "bake")]
        for _ in range(hops):  # from "still queued" to "just handed the place" to "in the middle of a replay"
            await asyncio.sleep(0)
        calls[0].cancel()
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await calls[1])[1].observation == "Done: drop; ggd"
        assert (await calls[3])[1].observation == "Could not: bake; ggb"
        assert (await world.step(state, "mix"))[1].observation == "Done: mix; ggm"
        await world.close()

    run(work())
    assert (copies.most, copies.live) == (1, 0)


def test_agent_r_09_close_waits_for_calls_in_progress_and_ends_those_that_wait() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 2)
        state = await walk(world, "sing")
        busy = [asyncio.create_task(world.step(state, "mix")) for _ in range(2)]
        waiting = asyncio.create_task(world.reset(1))
        await asyncio.sleep(0)
        await world.close()
        assert copies.live == 0
        for call in busy:
            assert (await call)[1].observation == "Could not: mix; sm"
        with pytest.raises(EnvError, match="closed"):
            await waiting
        await world.close()

    run(work())


def test_agent_r_09_a_copy_that_will_not_close_harms_nobody() -> None:
    class Stubborn(_Copy):
        async def step(self, action: str) -> Step:
            raise EnvError("broke")

        async def close(self) -> None:
            raise OSError("no such process")

    copies = Copies()

    async def make() -> Slot:
        slot = await copies.make()
        return Stubborn(copies, 1) if copies.made == 1 else slot

    async def work() -> None:
        world = ReplayWorld("bakery", "", make, 1)
        await walk(world, "sing")
        await world.close()

    run(work())
    assert copies.of(2) == ["reset 0", "sing"]


def test_agent_r_09_a_replay_that_shows_something_else_is_counted() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "get 1 flour", "sing")
        await walk(world)
        await world.step(state, "sing")
        assert world.stats.diverged == 0
        copies.answer = lambda given: given._replace(observation="?") if isinstance(given, Step) else given
        await world.step(state, "sing")
        assert world.stats.diverged == 1, "as after a restart of the server with other data"
        assert diverged(world) == replay_figures(world)["world_diverged"] == 1
        assert replay_figures(world)["world_steps"] == world.stats.steps
        assert (diverged(EmbeddedWorld(Bakery())), replay_figures(EmbeddedWorld(Bakery()))) == (0, {})

    run(work())


def test_agent_r_09_a_replay_that_ends_early_fails() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "sing", "mix")
        await walk(world)
        copies.answer = lambda given: given._replace(done=True) if isinstance(given, Step) else given
        with pytest.raises(EnvError, match="the replay ended after 1 of 2 actions"):
            await world.step(state, "mix")

    run(work())


def test_agent_r_09_nothing_can_be_done_in_an_episode_that_is_over() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, *(move.action for move in Bakery().expert()))
        assert state.done
        calls = len(copies.calls)
        with pytest.raises(EnvError, match="the episode is over"):
            await world.step(state, "sing")
        assert len(copies.calls) == calls

    run(work())
