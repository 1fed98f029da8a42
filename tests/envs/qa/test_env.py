"""Questions that are acted in: look-ups of what was found."""

from __future__ import annotations

import pytest

from selfimprove.envs.registry import text_env


@pytest.mark.parametrize("action", ["lookup[]", "lookup[ ]", "lookup[a]", "search[]", "search[zzyx]"])
def test_what_finds_nothing_is_not_valid(action: str) -> None:
    env = text_env(name="encyclopedia", questions=10).make()
    env.reset(0)
    step = env.step(action)
    assert (step.observation, step.info["valid"]) == ("Nothing was found.", False)
