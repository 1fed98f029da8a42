"""Gymnasium's environments, played as ``gymnasium:<id>``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from selfimprove.core.errors import UserError
from selfimprove.envs.gymnasium.env import drawing, written
from selfimprove.envs.gymnasium.world import GymnasiumParams
from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.registry import listed_env, modules_of, text_env

LAKE = {"name": "gymnasium:FrozenLake-v1", "actions": ["left", "down", "right", "up"]}


class Echo(gymnasium.Env[Any, str]):
    """Echoes every action; the task's word ends the episode."""

    action_space = spaces.Text(10)
    observation_space = spaces.Dict({"said": spaces.Text(10), "turn": spaces.Discrete(9)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.word, self.turn = f"word{self.np_random.integers(9)}", 0
        return {"said": self.word, "turn": 0}, {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return {"said": action, "turn": self.turn}, -0.5, action == self.word, self.turn == 5, {}


gymnasium.register("tests/Echo-v0", f"{__name__}:Echo")


def made(**keys: Any) -> AgentEnv:
    return text_env(**{**LAKE, **keys}).make()


def test_randomness_depends_only_on_the_task() -> None:
    one, other = made(), made()
    for task in range(5):
        assert one.reset(task) == other.reset(task)
        seen = [one.step(action).observation for action in ["right", "down", "right", "down", "right"]]
        assert seen == [other.step(action).observation for action in ["right", "down", "right", "down", "right"]]


def test_the_expert_crosses_slippery_ice() -> None:
    env = made()
    for task in range(10):
        env.reset(task)
        steps = [env.step(move.action) for move in env.expert()]
        assert (steps[-1].reward, steps[-1].done) == (1, True)


def test_a_state_can_be_restored_from_any_other_state_and_in_another_copy() -> None:
    env, other = made(options={"is_slippery": False}), made(options={"is_slippery": False})
    env.reset(1)
    env.step("right")
    there = env.snapshot()
    expected = env.step("right").observation
    env.reset(2)
    other.reset(0)
    for one in (env, other):
        one.restore(there)
        assert one.step("right").observation == expected


def test_a_state_of_another_copy_can_be_restored_before_the_first_reset() -> None:
    one, fresh = made(), made()
    one.reset(3)
    one.step("right")
    fresh.restore(one.snapshot())
    assert fresh.valid_actions() == one.valid_actions()
    assert fresh.step("down") == one.step("down")


def test_actions_can_be_free_text_and_an_observation_has_a_line_for_each_key() -> None:
    env = text_env(name="gymnasium:tests/Echo-v0", score="terminated", about="Say the word.").make()
    assert env.instruction.startswith("Say the word.\n")
    assert env.name == "tests-Echo-v0"
    word = env.reset(3).splitlines()[0].removeprefix("said: ")
    assert env.step("no").observation == "said: no\nturn: 1"
    assert env.step("longer than ten").info["valid"] is False
    assert (env.valid_actions(), env.expert()) == (None, [])
    done = env.step(word)
    assert (done.reward, done.done) == (1, True)


def test_action_masks_are_respected() -> None:
    env = text_env(name="gymnasium:Taxi-v4", score=20).make()
    env.reset(5)
    assert set(env.valid_actions() or []) < set("012345")
    assert env.step("5").info["valid"] is False


def test_the_score_is_the_return_divided_by_success_return() -> None:
    env = text_env(name="gymnasium:CartPole-v1", success_return=20.0).make()
    env.reset(0)
    steps = [env.step("01"[turn % 2]) for turn in range(20)]
    assert [round(step.reward * 20) for step in steps] == list(range(1, 21))
    assert [step.done for step in steps] == [False] * 19 + [True]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"name": "gymnasium:Nowhere-v0"},
            "gymnasium:Nowhere-v0 cannot be created (Environment `Nowhere` doesn't exist",
        ),
        ({"name": "gymnasium:Pendulum-v1", "actions": []}, "is not supported; only Discrete and Text are"),
        ({"actions": ["left"]}, "FrozenLake-v1 has 4 actions; env.actions must name each once"),
        ({"name": "gymnasium:tests/Echo-v0"}, "actions are free text; remove env.actions"),
        ({"name": "gymnasium:CartPole-v1", "actions": [], "success_return": 0.5}, "of task 0 add up to 1, but a score"),
        (
            {"name": "gymnasium:CliffWalking-v1"},
            "the rewards of task 0 add up to -1, but a score must be in [0, 1]; set",
        ),
        ({"options": {"map_name": "9x9"}}, "cannot be created ('9x9'); fix env.name or env.options"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        made(**keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_labels_require_listed_actions() -> None:
    env = listed_env(name="gymnasium:tests/Echo-v0", score="terminated").make()
    with pytest.raises(UserError, match="tests-Echo-v0 does not list its actions, so they cannot be labelled"):
        env.reset(0)


def test_a_stage_depends_on_the_module_named_in_the_environments_id() -> None:
    assert modules_of("agent_r", "gymnasium:my.games:Maze-v0") == ["my.games", GymnasiumParams.__module__]
    assert modules_of("agent_r", "gymnasium:Taxi-v4") == [GymnasiumParams.__module__]


def test_a_drawing_keeps_what_is_shown_by_colour() -> None:
    assert drawing("\x1b[41mS\x1b[0mFF\n") == "[S]FF"
    assert drawing("\x1b[43m \x1b[0m|\x1b[34;1mR\x1b[0m") == "[yellow  ]|[blue R]"
    assert drawing("\x1b[39ma\x1b[0m\x1b[31mb\x1b[0m") == "[plain a][red b]"


def test_observed_values_are_written_compactly() -> None:
    assert (
        written({"place": np.array([0.5, 1 / 3]), "word": "go", "n": np.int64(3)})
        == "place: [0.5, 0.3333]\nword: go\nn: 3"
    )
    assert written((1, np.array([0.5, 2]), [np.array([[1, 2]]), "go"], ())) == "[1, [0.5, 2], [[[1, 2]], go], []]"


class Picture(gymnasium.Env[Any, Any]):
    """Observations of pixels, the number of a frame and a title."""

    action_space = spaces.Discrete(2)

    def __init__(self, pixels: int) -> None:
        parts = {"pixels": spaces.Box(0, 1, (1, pixels)), "frame": spaces.Discrete(99), "title": spaces.Text(9)}
        self.observation_space = spaces.Dict(parts)
        self._seen = {"pixels": np.zeros((1, pixels), np.float32), "frame": 0, "title": "Night"}

    def reset(self, **_: Any) -> Any:
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 1.0, True, False, {}


def test_an_environment_whose_observations_have_more_than_1000_values_is_refused() -> None:
    gymnasium.register("Picture-v0", entry_point=f"{__name__}:Picture")
    text_env(name="gymnasium:Picture-v0", options={"pixels": 999}).make()
    with pytest.raises(UserError, match=r"has observations of 1001 values, but at most 1000"):
        text_env(name="gymnasium:Picture-v0", options={"pixels": 1000}).make()


class Line(gymnasium.Env[Any, Any]):
    """A place on a line, observed as an array with a single one; the goal is four steps to the right."""

    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, cells: int, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 1, (cells,), np.int8)
        self.cells, self.at, self.render_mode = cells, cells // 2, render_mode

    def reset(self, **_: Any) -> Any:
        self.at = self.cells // 2
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.at += 1 if action else -1
        done = self.at == self.cells // 2 + 4
        return self._seen(), float(done), done, False, {}

    def render(self) -> Any:
        return f"at {self.at}"

    def _seen(self) -> Any:
        return np.eye(1, self.cells, self.at, dtype=np.int8)[0]


def test_the_expert_tells_large_observations_apart() -> None:
    gymnasium.register("Line-v0", entry_point=f"{__name__}:Line")
    env = text_env(name="gymnasium:Line-v0", options={"cells": 1600}, actions=["left", "right"]).make()
    env.reset(0)
    assert [move.action for move in env.expert()] == ["right"] * 4
