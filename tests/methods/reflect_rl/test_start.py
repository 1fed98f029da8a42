"""What reinforcement learning may start from, and bad input (docs/reflect-rl.md, L26)."""

from __future__ import annotations

import pytest

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.start import check_reflector
from tests.methods.reflect_rl.test_params import params


def test_reflect_rl_bad_input_a_policy_that_reads_reflections_is_not_trained_without_a_reflector() -> None:
    runs = {
        "silent": {"init": "policy"},
        "deaf": {"init": "policy", "reflector": "reflector", "reflect": False},
        "later": {"init": "reflect_rl"},
        "unadvised": {"init": "plain"},
        "reflect_rl": {"init": "policy", "reflector": "reflector"},
    }
    read = ReflectRLParams.model_validate(params(iterations=runs), strict=False)
    for run in ("silent", "deaf", "later"):
        with pytest.raises(UserError, match=rf"iterations.{run}: 'policy' has learnt to act on reflections.*reflector"):
            check_reflector(read, run)
    for run in ("unadvised", "reflect_rl"):
        check_reflector(read, run)
