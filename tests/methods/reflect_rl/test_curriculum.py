"""When which tasks are played (spec reflect_rl §1, Curricula; rows 22-25)."""

from __future__ import annotations

import pytest

from selfimprove.envs.enumerated_taxi import EnumeratedTaxi
from selfimprove.errors import UserError
from selfimprove.methods.reflect_rl.curriculum import Phase, drawn, phase_at, phases
from tests.methods.reflect_rl.corridor import Corridor


def test_reflect_rl_25_levels_that_share_out_the_tasks_begin_after_steps_in_proportion() -> None:
    # 3 of 8 items are near: the original's (80 // 8) * 3.
    schedule = phases(Corridor(), range(8), 80, curriculum=True)
    assert schedule == [Phase(0, "near", (0, 1, 2)), Phase(30, "far", (3, 4, 5, 6, 7))]
    assert [phase_at(schedule, iteration) for iteration in (0, 29, 30, 79)] == [0, 0, 1, 1]


def test_reflect_rl_28_taxis_levels_begin_at_thirds_and_each_has_all_tasks() -> None:
    schedule = phases(EnumeratedTaxi("full"), [5, 9], 60, curriculum=True)
    assert schedule == [Phase(0, "pickup", (5, 9)), Phase(20, "dropoff", (5, 9)), Phase(40, "full", (5, 9))]


def test_reflect_rl_24_a_single_level_of_the_curriculum_is_the_whole_run() -> None:
    schedule = phases(EnumeratedTaxi("full", level=1), [5], 60, curriculum=True)
    assert schedule == [Phase(0, "dropoff", (5,))]


def test_without_a_curriculum_all_tasks_are_played_at_the_default_level() -> None:
    assert phases(Corridor(), [1, 6], 5, curriculum=False) == [Phase(0, "", (1, 6))]


def test_reflect_rl_25_a_level_without_a_step_is_refused() -> None:
    with pytest.raises(UserError, match=r"2 iterations leave none for level 'pickup'"):
        phases(EnumeratedTaxi("full"), [5, 9], 2, curriculum=True)
    with pytest.raises(UserError, match="there is no task"):
        phases(Corridor(), [], 5, curriculum=False)


def test_reflect_rl_25_each_pass_over_a_levels_tasks_is_shuffled_anew_and_has_all_once() -> None:
    phase = Phase(10, "far", tuple(range(20)))
    passes = [[drawn(phase, place, seed=1) for place in range(start, start + 20)] for start in (0, 20)]
    assert [sorted(one) for one in passes] == [list(range(20))] * 2
    assert passes[0] != passes[1]
    assert passes[0] != list(range(20))
    assert passes[0] != [drawn(phase._replace(level="near"), place, seed=1) for place in range(20)]
    assert passes[0] != [drawn(phase, place, seed=2) for place in range(20)]
