"""Reflections that misread DangerousTaxi's map are recognised, in the words of the scripted teacher."""

from __future__ import annotations

import re
from random import Random

import pytest

from selfimprove.envs.interface import Last
from selfimprove.envs.taxi.grid import STATES, picture, place
from selfimprove.envs.taxi.listed import EnumeratedTaxi
from selfimprove.envs.taxi.places import Target, misreads, stated


def reflections() -> dict[str, str]:
    """Map -> a reflection on it, from random rides."""
    env, draws = EnumeratedTaxi("full", max_turns=60), Random(0)
    found: dict[str, str] = {}
    for ride in range(600):
        env.reset(draws.choice(env.task_ids()), level=draws.choice(env.levels))
        last = None
        while env.state().labels and len(found) < STATES:
            drawn = env.state().pre.rpartition("\n\n")[2]
            found.setdefault(drawn, env.explain(last, ride, len(found)))
            best = env.oracle()[0]
            command = draws.choice([best, *(env.commands()[label] for label in "0123")])
            env.step(next(label for label, text in env.commands().items() if text == command))
            last = Last(command, draws.random() < 0.5)
    return found


def test_the_teacher_s_reflections_are_right_on_their_map_and_wrong_on_maps_with_another_target() -> None:
    known = reflections()
    assert len(known) > 300
    targets = {drawn: stated(said) for drawn, said in known.items()}
    assert None not in targets.values()
    assert not any(misreads(drawn, said) for drawn, said in known.items())
    draws = Random(1)
    for drawn, said in known.items():
        other = draws.choice(sorted(known))
        assert misreads(other, said) is (targets[other] != targets[drawn])


def test_a_target_that_the_taxi_hides_is_where_the_taxi_is() -> None:
    state = next(n for n in range(STATES) if place(n) == (0, 4, 4, 1))  # with the passenger, at the destination
    assert "D" not in picture(state)
    assert misreads(picture(state), "The last step helped. The destination is four rows south and one column west.")
    assert misreads(picture(state), "The passenger waits right here.")
    assert misreads(picture(state), "So far so good. With the passenger aboard, D is reached.") is False


@pytest.mark.parametrize(
    ("reflection", "target"),
    [
        ("The passenger is four rows north and one column west.", Target("passenger", -4, -1)),
        ("From here the destination is two columns east, but a wall stands in the east; it ends one row north.",
         Target("destination", 0, 2)),
        ("That was a detour. One row south lies the passenger.", Target("passenger", 1, 0)),
        ("The passenger is behind a wall that ends two rows north.", None),
        ("The passenger is five rows north.", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_place_is_read_only_in_the_teacher_s_words(reflection: str, target: Target | None) -> None:
    assert stated(reflection) == target
    if target is None:
        assert misreads(picture(0), reflection) is None


def test_a_long_reflection_without_punctuation_is_read_in_linear_time() -> None:
    assert stated("the taxi " * 20_000) is None  # in quadratic time an hour, beyond every test's limit


def test_a_text_that_is_no_map_is_not_judged() -> None:
    assert misreads("", "The passenger waits right here.") is None
    assert misreads(re.sub("P", "Q", picture(61)), "The passenger waits right here.") is None
