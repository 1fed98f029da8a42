"""The tasks of each iteration (docs/reflect-rl.md, L25 and L34)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.taxi.listed import EnumeratedTaxi
from selfimprove.methods.reflect_rl.curriculum import Phase, drawn, phase_at, phases
from tests.methods.reflect_rl.corridor import Corridor


class Buckets(Corridor):
    """A corridor whose levels have the given numbers of tasks, in order."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(tasks=sum(sizes))
        self.levels = tuple(f"depth{i}" for i in range(len(sizes)))
        self._level_of = [f"depth{i}" for i, size in enumerate(sizes) for _ in range(size)]

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        return [task for task in tasks if self._level_of[task] == level]


def test_levels_that_partition_the_tasks_start_after_whole_steps_per_item() -> None:
    schedule = phases(Corridor(), range(8), 85, curriculum=True)  # 85 // 8 = 10 per item; 3 are near
    assert schedule == [Phase(0, "near", (0, 1, 2)), Phase(30, "far", (3, 4, 5, 6, 7))]
    assert [phase_at(schedule, iteration) for iteration in (0, 29, 30, 84)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "max_steps", "starts"),
    [
        ((10, 15, 5), 100, [0, 30, 75]),
        ((86, 206), 20000, [0, 5848]),
        ((7, 3), 25, [0, 14]),
        ((7, 3), 10, [0, 7]),
        ((4,), 3, [0]),  # one level: no partition
    ],
)
def test_level_i_starts_at_steps_per_item_times_the_number_of_earlier_items(
    sizes: tuple[int, ...], max_steps: int, starts: list[int]
) -> None:
    env = Buckets(*sizes)
    schedule = phases(env, env.task_ids(), max_steps, curriculum=True)
    assert [phase.start for phase in schedule] == starts
    assert [len(phase.tasks) for phase in schedule] == list(sizes)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 200))
def test_with_a_step_per_item_every_level_has_at_least_as_many_steps_as_items(sizes: list[int], more: int) -> None:
    env = Buckets(*sizes)
    schedule = phases(env, env.task_ids(), sum(sizes) + more, curriculum=True)
    ends = [phase.start for phase in schedule[1:]] + [sum(sizes) + more]
    assert all(end - phase.start >= len(phase.tasks) for phase, end in zip(schedule, ends, strict=True))


def test_zero_steps_per_item_are_refused_with_remedies() -> None:
    remedy = r"9 rounds are fewer than the 10 tasks .* raise max_steps, .* fewer tasks .* rl\.curriculum: false\.$"
    with pytest.raises(UserError, match=remedy):
        phases(Buckets(7, 3), range(10), 9, curriculum=True)
    assert len(phases(Buckets(7, 3), range(10), 9, curriculum=False)) == 1
    assert len(phases(EnumeratedTaxi("full"), range(10), 9, curriculum=True)) == 3  # its levels are no partition


def test_a_single_level_without_tasks_is_refused() -> None:
    env = Buckets(7, 3)
    env.levels = ("depth1",)
    assert phases(env, range(10), 2, curriculum=True) == [Phase(0, "depth1", (7, 8, 9))]
    with pytest.raises(UserError, match="no tasks of level 'depth1' to train on; raise"):
        phases(env, range(7), 2, curriculum=True)


@pytest.mark.parametrize(("max_steps", "starts"), [(60, [0, 20, 40]), (100, [0, 33, 66]), (200, [0, 66, 133])])
def test_taxis_levels_take_a_third_of_the_run_each_and_have_all_tasks(max_steps: int, starts: list[int]) -> None:
    schedule = phases(EnumeratedTaxi("full"), [5, 9], max_steps, curriculum=True)
    levels = ("pickup", "dropoff", "full")
    assert schedule == [Phase(start, level, (5, 9)) for start, level in zip(starts, levels, strict=True)]


def test_a_single_level_of_the_curriculum_lasts_the_whole_run() -> None:
    schedule = phases(EnumeratedTaxi("full", level=1), [5], 60, curriculum=True)
    assert schedule == [Phase(0, "dropoff", (5,))]


def test_a_single_level_is_also_played_without_a_curriculum() -> None:
    env = Buckets(7, 3)
    env.levels = ("depth1",)
    assert phases(env, range(10), 2, curriculum=False) == [Phase(0, "depth1", (7, 8, 9))]
    with pytest.raises(UserError, match="no tasks of level 'depth1'"):
        phases(env, range(7), 2, curriculum=False)
    assert phases(EnumeratedTaxi("none", level=0), [5], 6, curriculum=False) == [Phase(0, "pickup", (5,))]


def test_without_a_curriculum_all_tasks_are_played_at_the_default_level() -> None:
    assert phases(Corridor(), [1, 6], 5, curriculum=False) == [Phase(0, "", (1, 6))]


def test_a_level_without_iterations_and_a_run_without_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"2 rounds leave none for level 'pickup'"):
        phases(EnumeratedTaxi("full"), [5, 9], 2, curriculum=True)
    with pytest.raises(UserError, match="there are no tasks"):
        phases(Corridor(), [], 5, curriculum=False)


def test_each_pass_over_a_levels_tasks_is_reshuffled_and_contains_each_task_once() -> None:
    phase = Phase(10, "far", tuple(range(20)))
    passes = [[drawn(phase, place, seed=1) for place in range(start, start + 20)] for start in (0, 20)]
    assert [sorted(one) for one in passes] == [list(range(20))] * 2
    assert passes[0] != passes[1]
    assert passes[0] != list(range(20))
    assert passes[0] != [drawn(phase._replace(level="near"), place, seed=1) for place in range(20)]
    assert passes[0] != [drawn(phase, place, seed=2) for place in range(20)]
