"""What reinforcement learning may start from, and bad input (docs/reflect-rl.md, L26)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.methods.reflect_rl.params import ReflectRLParams
from tests.methods.reflect_rl.test_params import params

ADVISED = {"init": "policy", "reflector": "reflector"}


@pytest.mark.parametrize("run", [{"init": "policy"}, {**ADVISED, "reflect": False}, {"init": "reflect_rl"}])
def test_reflect_rl_bad_input_a_policy_that_reads_reflections_is_not_trained_without_a_reflector(
    run: dict[str, Any],
) -> None:
    said = r"iterations.x: 'policy' was trained to act on reflections.*as reflector"
    with pytest.raises(ValidationError, match=said):
        read({"x": run})


def test_reflect_rl_bad_input_a_policy_that_never_read_a_reflection_may_be() -> None:
    assert set(read({"x": {"init": "plain"}}).iterations) == {"reflect_rl", "x"}


def read(runs: dict[str, Any]) -> ReflectRLParams:
    return ReflectRLParams.model_validate(params(iterations={"reflect_rl": ADVISED, **runs}), strict=False)
