"""Concurrent episodes: order of results, limit of concurrency, first error."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.engines.base import EngineError
from selfimprove.engines.episodes import play_all
from selfimprove.engines.results import Results


def test_results_are_in_the_order_of_the_tasks_and_concurrency_is_limited() -> None:
    active, most = 0, 0

    async def play(task: int) -> int:
        nonlocal active, most
        active += 1
        most = max(most, active)
        for _ in range(10 - task):  # later tasks finish first
            await asyncio.sleep(0)
        active -= 1
        return task * task

    assert asyncio.run(play_all(range(10), play, concurrency=3)) == [n * n for n in range(10)]
    assert most == 3
    assert asyncio.run(play_all([], play, concurrency=3)) == []


def test_episodes_up_to_the_limit_wait_concurrently_so_that_the_engine_can_batch_them() -> None:
    async def run() -> list[int]:
        everybody = asyncio.Event()
        here = []

        async def play(task: int) -> int:
            here.append(task)
            if len(here) == 50:
                everybody.set()
            await everybody.wait()
            return task

        return list(await play_all(range(50), play, concurrency=50))

    assert asyncio.run(run()) == list(range(50))


@pytest.mark.parametrize("error", [UserError("no key"), EngineError("x"), OSError(28, "full"), ValueError("a bug")])
def test_the_first_error_is_raised_unchanged_and_cancels_the_other_episodes(error: Exception) -> None:
    cancelled = []

    async def play(task: int) -> int:
        if task == 2:
            raise error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(task)
            raise
        return task

    with pytest.raises(type(error)) as caught:
        asyncio.run(play_all(range(5), play, concurrency=4))
    assert caught.value is error
    assert sorted(cancelled) == [0, 1, 3]


@given(st.permutations(range(12)), st.sampled_from([0, 11, 12]))
def test_results_are_the_same_sequence_in_memory_and_in_a_file(order: list[int], most: int) -> None:
    results: Results[dict[str, int]] = Results(12, most)
    for index in order:
        results.put(index, {"of": index * index})
    assert list(results) == [{"of": index * index} for index in range(12)]
    assert (results[-1], results[2:4], len(results)) == ({"of": 121}, [{"of": 4}, {"of": 9}], 12)
    with pytest.raises(IndexError):
        results[12]
