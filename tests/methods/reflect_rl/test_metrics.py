"""Metrics per task: standard errors over tasks, and outcomes for paired comparisons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.outcomes import average, compare
from selfimprove.core.records import Status, mean_and_error
from selfimprove.methods.reflect_rl.episode import RLEpisode, RLStep
from selfimprove.methods.reflect_rl.metrics import evaluate_metrics, outcomes


def episode(
    task: int, success: bool, costs: Any = (1.0,), level: str = "", valid: bool = True, **more: Any
) -> RLEpisode:
    status: Status = more.pop("status", "solved" if success else "unsolved")
    steps = [RLStep(prompt="", label="0", cost=cost, valid=valid) for cost in costs]
    return RLEpisode(id="", env="taxi", task_id=task, level=level, status=status, steps=steps, seed="", **more)


def test_standard_errors_are_over_tasks_not_episodes() -> None:
    played = [episode(1, True) for _ in range(50)] + [episode(2, False) for _ in range(50)]
    metrics = evaluate_metrics(played)
    assert metrics["success"] == {"mean": 0.5, "se": 0.5, "n": 2}  # over 100 independent episodes it would be 0.05
    assert metrics["episodes"] == 100


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=8))
def test_metrics_are_averages_of_the_outcomes(results: list[list[bool]]) -> None:
    played = [episode(task, won, [0.5, 1.0]) for task, row in enumerate(results) for won in row]
    metrics, averaged = evaluate_metrics(played), average(outcomes("taxi", played))
    for name in ("success", "cost", "steps"):
        assert metrics[name] == averaged[name]
    assert metrics["cost"]["mean"] == pytest.approx(1.5)
    assert metrics["success"] == mean_and_error(sum(row) / 3 for row in results)


def test_each_level_has_its_own_metrics() -> None:
    played = [episode(1, True, level="pickup"), episode(1, False, level="full"), episode(2, True, level="full")]
    metrics = evaluate_metrics(played)
    assert metrics["levels"]["pickup"]["success"]["mean"] == 1
    assert metrics["levels"]["full"]["success"] == {"mean": 0.5, "se": 0.5, "n": 2}
    assert metrics["levels"]["full"]["episodes"] == 2
    first = outcomes("taxi", played)[0]
    assert (first.id, first.values["success"], first.values["success_full"]) == ("taxi-1", 0.5, 0.0)
    assert "success_pickup" not in outcomes("taxi", played)[1].values


def test_invalid_actions_and_blocked_episodes_are_reported_as_shares() -> None:
    played = [
        episode(1, True, [1.0, 1.0, 1.0]),
        episode(1, False, [1.0], valid=False),
        episode(2, False, (), status="blocked", error="down"),
        episode(2, False, ()),
    ]
    metrics = evaluate_metrics(played)
    assert metrics["invalid"]["mean"] == 0.25
    assert metrics["blocked"] == {"mean": 0.25, "se": 0.25, "n": 2}
    assert metrics["success"]["mean"] == 0.25
    assert metrics["steps"] == {"mean": 1.0, "se": 1.0, "n": 2}  # (3 + 1) / 2 and 0


def test_steps_with_more_actions_than_labels_are_reported_only_if_there_are_any() -> None:
    played = episode(1, True, [1.0, 1.0])
    assert "unlisted_actions" not in evaluate_metrics([played])
    first, last = played.steps
    crowded = played.model_copy(update={"steps": [first.model_copy(update={"unlisted": 1}), last]})
    assert evaluate_metrics([crowded])["unlisted_actions"]["mean"] == 0.5


def test_rows_over_the_same_tasks_have_paired_differences() -> None:
    one = outcomes("taxi", [episode(1, True), episode(2, True)])
    other = outcomes("taxi", [episode(1, False), episode(2, True)])
    assert compare(one, other)["success"] == {"mean": 0.5, "se": 0.5, "n": 2}


def test_outcomes_of_a_single_level_are_not_repeated_by_level() -> None:
    for level in ("", "full"):
        (only,) = outcomes("taxi", [episode(1, True, level=level)])
        assert set(only.values) == {"success", "cost", "steps"}
