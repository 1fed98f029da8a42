"""A sum of floats that is the same in every version of Python."""

from __future__ import annotations

from selfimprove.core.sums import float_sum


def test_floats_are_added_from_left_to_right_and_rounded_after_each_addition() -> None:
    assert float_sum([0.1] * 10) == 0.9999999999999999  # from Python 3.12 on, sum gives 1.0
    assert float_sum([1.0, 1e100, 1.0, -1e100]) == 0.0


def test_the_sum_of_no_values_is_an_integer_zero_as_with_sum() -> None:
    assert repr(float_sum([])) == "0"
