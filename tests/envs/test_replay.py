"""Replay worlds: the same trees as by snapshots, with few copies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EmbeddedWorld, EnvError, Step, World
from selfimprove.envs.replay import ReplayWorld, diverged, replay_counts
from tests.envs.remote.bakery import ACTIONS, Bakery, Copies, bakery, run, walk


async def grow(world: World, task: int, nodes: int = 40) -> list[Any]:
    """A random tree: each step adds three children concurrently to a random recent node that is not done."""
    dice = rng("tree", task)
    state, observation = await world.reset(task)
    states, seen = [state], [observation]
    alive = [0]
    while len(states) < nodes and alive:
        parent = dice.choice(alive[-8:])
        actions = [dice.choice(ACTIONS[:4] * 4 + ACTIONS) for _ in range(3)]
        for state, step in await asyncio.gather(*(world.step(states[parent], action) for action in actions)):
            seen.append((parent, *step))  # type: ignore[arg-type]
            alive += [] if step.done else [len(states)]
            states.append(state)
    return seen


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_trees_by_replay_equal_the_trees_by_snapshot(slots: int) -> None:
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


def test_a_copy_that_is_already_in_the_state_replays_nothing() -> None:
    copies = Copies()

    async def work() -> ReplayWorld:
        world = bakery(copies, 3)
        await walk(world, "sing", "mix", "drop")
        return world

    stats = run(work()).stats
    assert copies.calls == [(1, "reset 0"), (1, "sing"), (1, "mix"), (1, "drop")]
    assert (stats.steps, stats.direct, stats.replayed, stats.resets) == (3, 3, 0, 1)


def test_a_copy_in_an_earlier_state_of_the_path_replays_only_the_rest() -> None:
    copies = Copies()

    async def work() -> ReplayWorld:
        world = bakery(copies, 2)
        far = await walk(world, "sing", "mix", "drop")  # copy 1
        near = await walk(world, "sing")  # copy 2 is two actions before `far`
        await world.step(far, "bake")  # copy 1 leaves that state
        _, step = await world.step(far, "inventory")  # copy 2: the shorter replay, without a reset
        assert "'log': 'smdi'" in step.observation
        await world.step(near, "bake")  # no copy is on the path: the least recently used one is reset
        return world

    stats = run(work()).stats
    assert copies.of(2) == ["reset 0", "sing", "mix", "drop", "inventory"]
    assert copies.of(1) == ["reset 0", "sing", "mix", "drop", "bake", "reset 0", "sing", "bake"]
    assert (stats.steps, stats.direct, stats.replayed, stats.resets) == (7, 5, 3, 3)


def test_the_nearest_copy_of_the_same_task_is_used() -> None:
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


def test_a_replay_with_a_different_observation_is_counted_as_diverged() -> None:
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
        assert diverged(world) == replay_counts(world)["world_diverged"] == 1
        assert replay_counts(world)["world_steps"] == world.stats.steps
        assert (diverged(EmbeddedWorld(Bakery())), replay_counts(EmbeddedWorld(Bakery()))) == (0, {})

    run(work())


def test_a_replay_that_ends_early_fails() -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "sing", "mix")
        await walk(world)
        copies.answer = lambda given: given._replace(done=True) if isinstance(given, Step) else given
        with pytest.raises(EnvError, match="the replay ended after 1 of 2 actions"):
            await world.step(state, "mix")

    run(work())


def test_a_step_in_a_finished_episode_is_refused() -> None:
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
