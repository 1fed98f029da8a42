"""Metrics of episodes, averaged over all requested questions (docs/spin.md, S40), and outcomes per question."""

from typing import Any

import pytest

from selfimprove.engines.base import EngineError
from selfimprove.methods.spin.metrics import evaluate_metrics, outcomes, tool_figures
from tests.methods.spin.episodes import QUESTION, REPLIES, played


def blocked(*_: Any) -> None:
    raise EngineError("gone")


@pytest.fixture(scope="module")
def episodes() -> Any:
    kinds = ["bridge", "comparison", "bridge", "comparison", "bridge"]
    answers = [
        REPLIES, [" t\nAction: finish[Tolma town]"], [" t\nAction: dig[x]"] * 11, [" hm"], blocked,
    ]  # fmt: skip
    return [
        played(answer, question=QUESTION.model_copy(update={"id": f"q{n}", "kind": kind}))  # type: ignore[arg-type]
        for n, (answer, kind) in enumerate(zip(answers, kinds, strict=True))
    ]


def test_every_mean_is_over_all_requested_questions(episodes: Any) -> None:
    metrics = evaluate_metrics(episodes)
    for name in ("em", "f1", "reward", "steps", "finished", "blocked"):
        assert metrics[name]["n"] == 5
    assert metrics["em"]["mean"] == 1 / 5
    assert metrics["f1"]["mean"] == pytest.approx((1 + 2 / 3) / 5)
    assert metrics["em"]["se"] == pytest.approx((0.2 * 0.8 * 5 / 4 / 5) ** 0.5)
    assert metrics["finished"]["mean"] == 2 / 5  # not the episode without any action
    assert metrics["blocked"]["mean"] == 1 / 5
    assert metrics["steps"]["mean"] == (3 + 1 + 11 + 1 + 0) / 5


def test_without_evaluation_there_are_no_scores(episodes: Any) -> None:
    other = QUESTION.model_copy(update={"kind": "bridge"})
    metrics = evaluate_metrics([played(evaluate=False), played(evaluate=False, index=1, question=other)])
    assert not {"em", "f1", "reward", "kinds"} & set(metrics)
    assert metrics["finished"]["mean"] == 1


def test_the_invalid_rate_is_a_share_of_rounds(episodes: Any) -> None:
    metrics = evaluate_metrics(episodes)
    assert metrics["invalid"]["n"] == 16
    assert metrics["invalid"]["mean"] == 12 / 16
    assert metrics["failed"]["mean"] == 1 / 5
    assert list(metrics["actions"].items()) == [("", 11), ("finish", 3), ("search", 2)]


def test_exact_match_is_reported_for_each_kind_of_question(episodes: Any) -> None:
    kinds = evaluate_metrics(episodes)["kinds"]
    assert (kinds["bridge"]["mean"], kinds["bridge"]["n"]) == (1 / 3, 3)
    assert kinds["comparison"]["n"] == 2
    assert list(kinds) == ["bridge", "comparison"]
    assert "kinds" not in evaluate_metrics(episodes[:1])


def test_requested_replies_and_episodes_that_outgrew_the_context_are_averaged(episodes: Any) -> None:
    metrics = evaluate_metrics([*episodes[1:], episodes[0].model_copy(update={"cramped": True})])
    assert metrics["cramped"]["mean"] == 1 / 5
    assert metrics["attempts"]["mean"] == (3 + 1 + 11 + 6) / 16  # a reply without an action is requested 6 times


def test_the_counters_of_tools_do_not_depend_on_the_order_of_calls() -> None:
    told = tool_figures({"search": 2, "lookup": 1}, {"timeout": 1, "error": 3})
    assert [list(told[name]) for name in ("tools", "tool_faults")] == [["lookup", "search"], ["error", "timeout"]]


def test_there_is_one_outcome_per_question(episodes: Any) -> None:
    assert [one.id for one in outcomes(episodes)] == [f"q{n}" for n in range(5)]
