"""The environment of lookup questions: searches and lookups that find nothing."""

from __future__ import annotations

import pytest

from selfimprove.envs.registry import text_env


@pytest.mark.parametrize("action", ["lookup[]", "lookup[ ]", "lookup[a]", "search[]", "search[zzyx]"])
def test_an_action_that_finds_nothing_is_invalid(action: str) -> None:
    env = text_env(name="encyclopedia", questions=10).make()
    env.reset(0)
    step = env.step(action)
    assert (step.observation, step.info["valid"]) == ("Nothing was found.", False)
