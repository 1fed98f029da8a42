"""Outcomes by task: rates with their errors, and comparisons of the metrics that both runs have."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from selfimprove.core.outcomes import Outcome, compare, ratio


def test_the_error_of_a_rate_counts_a_problem_s_chances_as_one_cluster() -> None:
    assert ratio([]) == ratio([(0, 0)]) == {"mean": 0.0, "se": 0.0, "n": 0}
    assert ratio([(1, 2)]) == {"mean": 0.5, "se": 0.0, "n": 2}  # a single problem has no error
    # (1 - 0.75 * 2) ** 2 + (2 - 0.75 * 2) ** 2 is 0.5; times 2 / 1; its root, divided by 4 chances
    assert ratio([(1, 2), (2, 2), (0, 0)]) == {"mean": 0.75, "se": 0.25, "n": 4}


def test_two_runs_are_compared_by_the_metrics_that_both_have() -> None:
    run = [Outcome(id=str(i), values={"score": 2.0 * i, "steps": 3.0}) for i in range(3)]
    other = [Outcome(id=str(i), values={"score": 1.0 * i, "revised": 1.0}) for i in range(3)]
    differences = compare(run, other)
    assert list(differences) == ["score"]
    assert differences["score"]["mean"] == 1.0


@pytest.mark.parametrize("value", [1e101, -1e101])
def test_a_number_whose_square_would_overflow_is_refused_whatever_its_sign(value: float) -> None:
    with pytest.raises(ValidationError, match=r"numbers must not exceed 1e\+100"):
        Outcome(id="a", values={"score": value})
