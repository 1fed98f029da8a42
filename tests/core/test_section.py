"""The bounds on numbers in every section of params.yaml, and the room that an answer leaves for a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field, ValidationError

from selfimprove.core.params import LARGEST_SEED, Section, check_answer_room


class Numbers(Section):
    count: int = 1
    rate: float = 1.0
    seed: int = Field(default=1, le=LARGEST_SEED)
    rates: dict[str, float] = Field(default_factory=dict)
    counts: list[int] = Field(default_factory=list)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 10**7), ("count", -(10**7)), ("rate", 1e9), ("rate", -1e9), ("rate", 1e-12), ("rate", -1e-12),
        ("rate", 0.0), ("seed", LARGEST_SEED), ("rates", {"a": 1e9, "b": 0.0}), ("counts", [0, 10**7]),
    ],
)  # fmt: skip
def test_numbers_up_to_the_bounds_are_accepted(key: str, value: Any) -> None:
    assert getattr(Numbers.model_validate({key: value}), key) == value


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("count", 10**7 + 1, "at most 10000000"),
        ("count", -(10**7) - 1, "at most 10000000"),
        ("rate", 1.1e9, r"from 1e-12 to 1e\+09 is expected, got 1\.1e\+09"),
        ("rate", -1.1e9, r"from 1e-12 to 1e\+09"),
        ("rate", 9e-13, r"from 1e-12 to 1e\+09"),
        ("seed", LARGEST_SEED + 1, "less than or equal to 4294967295"),
        ("rates", {"a": 1.0, "b": 1e10}, r"from 1e-12 to 1e\+09"),
        ("counts", [1, 10**8], "at most 10000000"),
    ],
)
def test_a_number_that_no_run_could_use_is_refused_at_any_place(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Numbers.model_validate({key: value})


def test_an_answer_leaves_room_for_at_least_one_token_of_the_prompt() -> None:
    engine = SimpleNamespace(context=100)
    check_answer_room("evaluate.max_tokens", 99, "policy", engine)
    with pytest.raises(ValueError, match=r"^evaluate\.max_tokens: 100 tokens leave no .*policy\.context 100;"):
        check_answer_room("evaluate.max_tokens", 100, "policy", engine)
    check_answer_room("evaluate.max_tokens", 10**6, "teacher", SimpleNamespace())  # an endpoint has no context
