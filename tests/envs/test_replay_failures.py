"""Replay worlds with failing or slow copies and cancelled calls."""

from __future__ import annotations

import asyncio

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.replay import ReplayWorld, Slot
from tests.envs.remote.bakery import Copies, Copy, bakery, run, walk


def test_a_failed_copy_is_replaced_and_the_state_replayed() -> None:
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


def test_a_second_failure_fails_the_call_but_no_other_call() -> None:
    async def before(copy: int, call: str) -> None:
        if call == "mix":
            raise EnvError(f"copy {copy} broke")

    copies = Copies(before)

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "sing", task=3)
        other = await walk(world, "get 1 flour", task=2)
        for number in (2, 4):  # the same call fails again; the last copy of the first time has been discarded
            with pytest.raises(EnvError, match=rf"bakery: task 3, action 2 \('mix'\): .*a fresh copy: copy {number} b"):
                await world.step(state, "mix")
            assert (copies.made, world.stats.failures) == (number, number)
        assert (await world.step(other, "bake"))[1].observation == "Could not: bake; gb"
        assert (await world.step(state, "bake"))[1].observation == "Could not: bake; sb"
        assert (copies.made, world.stats.failures) == (5, 4)
        await world.close()

    run(work())
    assert (copies.most, copies.live) == (1, 0)


def test_user_errors_are_not_retried() -> None:
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


def test_the_creation_of_a_copy_is_retried_once() -> None:
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


def test_waiting_calls_are_served_in_order_and_a_slow_copy_delays_none_of_them() -> None:
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
def test_cancelled_calls_release_their_places_and_do_not_affect_other_calls(hops: int) -> None:
    copies = Copies()

    async def work() -> None:
        world = bakery(copies, 1)
        state = await walk(world, "get 1 flour", "get 1 water")
        calls = [asyncio.create_task(world.step(state, action)) for action in ("mix", "drop", "sing", "bake")]
        for _ in range(hops):  # from "still queued" to "just given the place" to "in the middle of a replay"
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


def test_close_awaits_calls_in_progress_and_fails_waiting_calls() -> None:
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


def test_a_copy_that_fails_to_close_does_not_affect_other_copies() -> None:
    class Stubborn(Copy):
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
