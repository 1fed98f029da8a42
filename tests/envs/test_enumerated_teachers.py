"""Teachers' reflections in environments with labelled actions: correct, varied, and never naming the action."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import selfimprove.envs.taxi.listed as taxi_module
from selfimprove.envs.interface import EnumeratedEnv, Last
from selfimprove.envs.labels import oracle_label
from selfimprove.envs.taxi.grid import ACTIONS, distances, moves, place
from selfimprove.envs.taxi.listed import EnumeratedTaxi, obstacles
from tests.envs.labelled_worlds import all_three, explore


@pytest.fixture
def each(tmp_path: Path) -> Callable[..., list[EnumeratedEnv]]:
    """All three environments, with the same additional params."""
    return partial(all_three, tmp_path)


def test_the_examples_in_the_docstring_of_taxi_are_real_reflections() -> None:
    env, text = EnumeratedTaxi(), taxi_module.__doc__
    env.reset(61)
    env.step("0")
    assert f"    {env.explain(Last('move south', False), 0)}\n" in text
    env.reset(15)
    assert f"    {env.explain(Last('move west', True), 0)}\n" in text


def _every_taxi_reflection() -> Iterator[Any]:
    """(environment, reflection, last action) for all states that occur, with and without a last action; three draws."""
    env = EnumeratedTaxi(max_turns=100)
    for state in range(500):
        here = place(state)
        if here.passenger == here.destination:
            continue
        env.reset(0)
        env._moment = env._moment._replace(states=(state,))
        for last, draw in product((None, Last("move west", True), Last("move north", False)), range(3)):
            yield env, env.explain(last, state, draw), last


def test_the_teacher_of_taxi_never_reveals_the_action() -> None:
    said = set()
    for env, text, last in _every_taxi_reflection():
        assert not env.reveals(text), text
        for words in (*ACTIONS, "pick them up", "drop them off", "action", "label"):
            assert words not in text.lower(), text
        assert len(text.split()) <= 100
        assert text.count(". ") == (0 if last is None else 1)
        said.add(text)
    assert len(said) > 300  # varied


def test_the_reflections_of_taxi_determine_a_best_move() -> None:
    """All states with equal target offset and equal obstacles, and so with equal words, share a best action."""
    good: dict[tuple[int, int, str, bool], set[int]] = {}
    for state in range(500):
        here = place(state)
        if here.passenger == here.destination:
            continue
        down, right = here.target[0] - here.row, here.target[1] - here.column
        key = (down, right, obstacles(state) if (down, right) != (0, 0) else "", here.passenger == 4)
        best = {a for a in range(4) if distances()[moves()[state][a].state] == distances()[state] - 1}
        if (down, right) != (0, 0):
            good[key] = good.get(key, best) & best
    assert sum(not actions for actions in good.values()) == 0


def test_teachers_distinguish_a_wrong_action_from_a_helpful_one(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for env in each():
        task = env.task_ids()[0]
        env.reset(task)
        env.step(oracle_label(env) or "")
        command = "cat core/bus.py" if env.name == "autoexplore" else "x"
        helped = {env.explain(Last(command, True), draw) for draw in range(6)}
        wrong = {env.explain(Last(command, False), draw) for draw in range(6)}
        assert not helped & wrong
        assert len(wrong) > 1
        assert env.explain(None, 0) == env.explain(None, 0)


def test_the_teacher_of_autoexplore_does_not_name_the_next_command(tmp_path: Path) -> None:
    env = explore(tmp_path)
    for task in env.task_ids():
        env.reset(task)
        last = None
        while way := env.oracle():
            for draw in range(4):
                text = env.explain(last, task, draw)
                assert way[0] not in text
                assert not re.search(r"\b(I|cd|cat|id)\b", text)
                assert len(text.split()) <= 50
            env.step(oracle_label(env) or "")
            last = Last(way[0], True)
