"""The models that reinforcement learning may start from, and bad input (docs/reflect-rl.md, L26)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.methods.reflect_rl.params import ReflectRLParams
from tests.methods.reflect_rl.test_params import ADVISED, ALONE, MODELS, RUN, params


@pytest.mark.parametrize("init", ["policy", "reflect_rl"])
def test_a_policy_trained_on_reflections_cannot_be_trained_without_a_reflector(
    init: str,
) -> None:
    said = r"iterations.x: 'policy' was trained to act on reflections.*set reflector"
    with pytest.raises(ValidationError, match=said):
        read({"init": init, "reflector": "none"})


def test_a_policy_trained_without_reflections_can_be_trained_without_a_reflector() -> None:
    assert set(read({"init": "plain", "reflector": "none"}).iterations) == {"reflect_rl", "x"}


def read(run: dict[str, Any]) -> ReflectRLParams:
    rows = {"more_sft": ADVISED, "reflect_rl": ADVISED, "x": ALONE}
    return ReflectRLParams.model_validate(params(models=MODELS, iterations={"reflect_rl": RUN, "x": run}, rows=rows))
