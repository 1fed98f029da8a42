"""Checks the contract (``contract.py``) of the registry's environments and adapters, except ``worlds.ELSEWHERE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.envs.own import TextEnv
from selfimprove.envs.params import AnswerParams, ListedParams, TextParams
from selfimprove.envs.registry import listed_env, named, playable, text_env
from tests.envs.contract import check_acted, check_labelled
from tests.support.worlds import HERE, keys_of


class Counter(TextEnv):
    """A user-defined environment that uses the base class."""

    instruction = "Reach the goal exactly. The actions are: add one, double."
    actions = ("add one", "double")
    tasks = 40

    def begin(self, task_id: int) -> str:
        self.goal, self.now = task_id + 1, 0
        return f"The goal is {self.goal}. You are at 0."

    def act(self, action: str) -> tuple[str, float, bool]:
        self.now = self.now + 1 if action == "add one" else self.now * 2
        return f"You are at {self.now}.", float(self.now == self.goal), self.now >= self.goal


OWN = f"{__name__}:Counter"


def some(tasks: list[int]) -> list[int]:
    """The first, the last and evenly spaced tasks."""
    return sorted({tasks[0], tasks[-1], *tasks[:: max(1, len(tasks) // 6)]})


@pytest.mark.parametrize("name", [*(name for name in playable(TextParams) if name in HERE), OWN])
def test_environments_with_text_actions_keep_the_contract(name: str, tmp_path: Path) -> None:
    keys = keys_of(name, tmp_path, attempts=name in named(AnswerParams))
    section = text_env(**keys)
    env, other = section.make(), section.make()
    assert env.name == section.world_name
    assert env.instruction == section.instruction()
    check_acted(env, other, some(list(env.task_ids())))


@pytest.mark.parametrize("name", [*(name for name in playable(ListedParams) if name in HERE), OWN])
def test_environments_with_labelled_actions_keep_the_contract(name: str, tmp_path: Path) -> None:
    section = listed_env(**{**keys_of(name, tmp_path), "max_turns": 30})
    env = section.make()
    assert env.name == section.world_name == section.spelling().name
    assert env.instruction == section.instruction()
    check_labelled(env, some(list(env.task_ids())))
