"""Evaluation metrics (docs/rise.md, R34 and R35)."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import beyond, compare, paired_difference, ratio, unpaired_difference
from selfimprove.envs.math.gsm8k import equivalent
from selfimprove.methods.rise.metrics import accuracy_rows, by_turn, evaluate_metrics, majority, outcomes
from tests.methods.rise.episodes import attempt, episode, run


def answers(*values: Any, id: str = "p", right: str = "1") -> Any:
    """A sequential episode with these answers; None is unparsable."""
    return episode(*(scored(value, right) for value in values), id=id)


def together(*values: Any, id: str = "p", right: str = "1") -> Any:
    """A parallel episode with these answers; None is unparsable."""
    return episode([scored(value, right) for value in values], id=id)


def scored(value: Any, right: Any) -> Any:
    if value is None:
        return attempt(-1, "?", answer=None)
    return attempt(1.0 if equivalent(value, right) else 0.0, value, answer=value)


def means(metrics: Any) -> Any:
    return {name: metric["mean"] for name, metric in metrics.items()}


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        (["1", "2", "2"], 1),
        (["1", "2"], 0),  # tie: the class seen first
        (["2", "1", "1", "2"], 0),
        ([None, None, "3"], 2),  # unreadable answers have no vote
        ([None, None], None),
        ([], None),
        (["1", "2", "1.0", "2.00", "01"], 0),  # votes go to classes of equivalent answers, not to strings
        (["2", "1", "1.0"], 1),
    ],
)
def test_majority_over_equivalence_classes(votes: Any, winner: int | None) -> None:
    assert majority(votes, equivalent) == winner


@given(st.lists(st.sampled_from(["1", "1.0", "2", None]), max_size=7))
def test_majority_is_the_first_of_the_classes_with_the_most_votes(votes: list[str | None]) -> None:
    winner = majority(votes, equivalent)
    sizes = {v: sum(equivalent(v, w) for w in votes) for v in votes if v is not None}
    assert (winner is None) == (not sizes)
    if winner is not None:
        assert sizes[votes[winner]] == max(sizes.values())  # type: ignore[index]
        assert not any(sizes[v] == max(sizes.values()) for v in votes[:winner] if v is not None)


def test_metrics_match_a_hand_computed_example() -> None:
    sequential = [
        answers("1", "2", "2", "2", "1", id="a"),  # first right, then changed to a wrong answer: the majority is 2
        answers("3", "1", "1.0", "4", None, id="b"),  # first wrong, majority right
        answers("5", "5", "5", "5", "5", id="c"),
        answers(None, None, None, None, None, id="d"),
    ]
    parallel = [
        together("1", "2", "2", "3", "4", id="a"),  # majority wrong though the first is right
        together("3", "1", "1", None, "1", id="b"),
        together("5", "1", "1", "5", "1", id="c"),
        together(None, None, None, None, "1", id="d"),
    ]
    metrics = evaluate_metrics(sequential, parallel, equivalent)
    got = means(metrics)
    assert got["m1@t1"] == 1 / 4
    assert got["m5@t1"] == 3 / 4
    assert got["p5@t1"] == 4 / 4
    assert got["m1@t5"] == 1 / 4
    assert got["p1@t5"] == 2 / 4
    assert [got[f"m1@t{k}"] for k in range(1, 6)] == [1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 4]
    assert [got[f"p1@t{k}"] for k in range(2, 6)] == [2 / 4] * 4
    assert [got[f"accuracy@t{k}"] for k in range(1, 6)] == [1 / 4, 1 / 4, 1 / 4, 0, 1 / 4]
    assert got["m1@t5-m1@t1"] == 0
    assert got["p1@t5-m1@t1"] == 1 / 4
    assert got["p1@t5-p5@t1"] == -2 / 4
    assert metrics["p1@t5-p5@t1"]["se"] == pytest.approx(math.sqrt(1 / 3 / 4))  # paired: 0, 0, -1, -1
    assert metrics["m1@t5-m1@t1"]["se"] == pytest.approx(math.sqrt((1 + 1) / 3 / 4))  # paired: -1, 1, 0, 0
    assert metrics["right_to_wrong"] == {"mean": 2 / 3, "se": pytest.approx(metrics["right_to_wrong"]["se"]), "n": 3}
    assert metrics["wrong_to_right"]["mean"] == 2 / 13
    assert metrics["wrong_to_right"]["n"] == 13
    assert got["unparsable"] == 6 / 20
    assert all(metric["n"] == 4 for name, metric in metrics.items() if "@" in name)


def test_an_attempt_without_an_answer_is_unparsable_whatever_its_reward() -> None:
    run = episode(attempt(-1, "?"), attempt(0, "?").model_copy(update={"answer": None}), attempt(0, "2", answer="2"))
    metrics = evaluate_metrics([run], [run], equivalent)  # MATH gives 0, not -1
    assert (metrics["unparsable"]["mean"], metrics["unparsable"]["n"]) == (pytest.approx(2 / 3), 3)


def test_an_attempt_whose_scoring_failed_is_no_attempt() -> None:
    cut = episode(scored("1", "1"), attempt(None, "blocked"), id="p", status="blocked")  # as in a log of the release
    metrics = evaluate_metrics([cut], [together("1")], equivalent, turns=2)
    assert (metrics["unparsable"]["n"], metrics["right_to_wrong"]["n"]) == (1, 0)
    assert (metrics["m1@t1"]["mean"], metrics["m1@t2"]["mean"]) == (1, 0)  # turn 2 was not reached


def test_a_majority_over_samples_counts_the_given_number_of_first_attempts() -> None:
    first = together("2", "1", "1", "2", "2")
    got = means(evaluate_metrics([answers("2")], [first], equivalent, samples=3))
    assert (got["m3@t1"], got["p3@t1"]) == (1, 1)
    assert means(evaluate_metrics([answers("2")], [first], equivalent))["m5@t1"] == 0


@pytest.mark.parametrize(("samples", "any_right"), [("222", 0), ("221", 1), ("111", 1)])
def test_p5_at_the_first_turn_is_whether_any_of_the_samples_is_right(samples: str, any_right: int) -> None:
    got = means(evaluate_metrics([answers(samples[0])], [together(*samples)], equivalent))
    assert got["p3@t1"] == any_right


def test_majority_and_any_at_a_turn_count_only_the_turns_up_to_it() -> None:
    got = means(evaluate_metrics([answers("2", "1", "1")], [together("2")], equivalent))
    assert [got["m1@t1"], got["m1@t2"], got["m1@t3"]] == [0, 0, 1]
    late = means(evaluate_metrics([answers("2", "2", "1", "1")], [together("2")], equivalent))
    assert [late[f"p1@t{k}"] for k in (2, 3, 4)] == [0, 1, 1]
    assert "m5@t1" not in got
    assert "p5@t1" not in got


def test_blocked_problems_stay_in_the_denominator() -> None:
    gone = run(id="gone", status="blocked")
    cut = answers("1", id="cut").model_copy(update={"status": "blocked"})
    metrics = evaluate_metrics(
        [gone, cut, answers("1", "1", id="ok")],
        [gone, together("1", "1", id="cut"), together("1", "1", id="ok")],
        equivalent,
        turns=2,
    )
    assert metrics["m1@t1"] == {"mean": pytest.approx(2 / 3), "se": pytest.approx(1 / 3), "n": 3}
    assert metrics["m2@t1"]["mean"] == pytest.approx(2 / 3)
    assert metrics["accuracy@t2"]["mean"] == pytest.approx(1 / 3)  # a turn that was not reached counts as wrong
    assert metrics["blocked"]["mean"] == pytest.approx(2 / 3)
    none = means(evaluate_metrics([gone], [gone], equivalent, turns=5, samples=5))
    assert {none[name] for name in ("p1@t5", "m5@t1", "p5@t1", "p1@t5-p5@t1")} == {0}


def test_a_run_of_two_turns_has_gains_over_its_first_attempt() -> None:
    got = means(evaluate_metrics([answers("2", "1")], [together("2")], equivalent))
    assert (got["m1@t2-m1@t1"], got["p1@t2-m1@t1"]) == (0, 1)
    assert not [name for name in means(evaluate_metrics([answers("2")], [together("2")], equivalent)) if "-" in name]


def test_a_blocked_run_s_majority_is_wrong_at_turns_that_were_not_played() -> None:
    cut = answers("1", id="cut").model_copy(update={"status": "blocked"})
    got = means(evaluate_metrics([cut], [together("1", "1", id="cut")], equivalent, turns=3))
    assert [got["m1@t1"], got["m1@t2"], got["m1@t3"]] == [1, 0, 0]
    assert got["p1@t3"] == 1  # one of its attempts was right


def test_an_oracle_run_has_the_same_p1_and_no_majority_over_turns() -> None:
    free = [answers("2", "1", "3", id="a"), answers("1", "2", "2", id="b"), answers("2", "2", "2", id="c")]
    stopped = [answers("2", "1", id="a"), answers("1", id="b"), answers("2", "2", "2", id="c")]
    parallel = [together("2", id="a"), together("1", id="b"), together("2", id="c")]
    without = means(evaluate_metrics(free, parallel, equivalent, turns=3))
    oracle = means(evaluate_metrics(stopped, parallel, equivalent, turns=3, oracle=True))
    for name in ("m1@t1", "p1@t2", "p1@t3", "p1@t3-m1@t1"):
        assert oracle[name] == without[name]
    assert not {"m1@t2", "m1@t3", "m1@t3-m1@t1", "accuracy@t2"} & set(oracle)


def test_two_runs_are_compared_problem_by_problem() -> None:
    parallel = [together("2", id="a"), together("2", id="b"), together("2", id="c")]
    better = outcomes([answers("1", id="a"), answers("1", id="b"), answers("2", id="c")], parallel, equivalent)
    worse = outcomes([answers("2", id="b"), answers("1", id="a"), answers("2", id="c")], parallel, equivalent)
    difference = compare(better, worse)["m1@t1"]
    assert difference == {"mean": pytest.approx(1 / 3), "se": pytest.approx(1 / 3), "n": 3}
    assert compare(better, better)["m1@t1"] == {"mean": 0, "se": 0, "n": 3}
    with pytest.raises(UserError, match="different problems"):
        compare(better, better[:2])
    with pytest.raises(UserError, match="different problems"):
        paired_difference({"a": 1.0}, {"b": 1.0})


def test_a_sequential_and_a_parallel_run_of_different_problems_are_refused() -> None:
    with pytest.raises(UserError, match="different problems"):
        outcomes([answers("1", id="a")], [together("1", id="b")], equivalent)
    with pytest.raises(UserError, match="different problems"):
        outcomes([answers("1", id="a")], [together("1", id="a"), together("1", id="a")], equivalent)


def test_without_given_sizes_a_full_run_is_as_long_as_the_longest_one() -> None:
    cut = answers("2", id="cut").model_copy(update={"status": "blocked"})
    both = [together("2", id="cut"), together("2", "2", "1", id="ok")]
    got = means(evaluate_metrics([cut, answers("2", "2", "1", id="ok")], both, equivalent))
    assert (got["p1@t3"], got["p3@t1"]) == (1 / 2, 1 / 2)
    gone = run(status="blocked")
    assert means(evaluate_metrics([gone], [gone], equivalent))["accuracy@t1"] == 0


def test_rates_have_clustered_standard_errors() -> None:
    assert ratio([]) == ratio([(0, 0)]) == {"mean": 0.0, "se": 0.0, "n": 0}
    assert ratio([(1, 2), (1, 2)]) == {"mean": 0.5, "se": 0.0, "n": 4}
    one_each = ratio([(1, 1), (0, 1), (0, 1), (1, 1)])  # clusters of size one: the ordinary error of a mean
    assert one_each == {"mean": 0.5, "se": pytest.approx(math.sqrt(1 / 3 / 4)), "n": 4}


def test_the_plot_s_rows_have_accuracy_majority_and_any_by_turn() -> None:
    metrics = evaluate_metrics([answers("2", "1", "1", "2")], [together("2")], equivalent)
    rows = accuracy_rows(metrics)
    assert [(row["turn"], row["accuracy"], row["majority"], row["any"]) for row in rows] == [
        (1, 0, 0, 0),
        (2, 1, 0, 1),
        (3, 1, 1, 1),
        (4, 0, 0, 1),
    ]


def test_the_plot_s_turns_are_in_numerical_order_whatever_the_order_of_the_metrics() -> None:
    metrics = evaluate_metrics([answers(*"22222222221")], [together("2")], equivalent)
    sorted_by_name = dict(sorted(metrics.items()))  # accuracy@t10 before accuracy@t2
    assert [metric["mean"] for metric in by_turn(sorted_by_name)] == [0] * 10 + [1]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["1", "2", "3", None]), min_size=3, max_size=3),
            st.lists(st.sampled_from(["1", "2", None]), min_size=5, max_size=5),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_metrics_satisfy_their_inequalities(split: list[tuple[list[str | None], list[str | None]]]) -> None:
    sequential = [answers(*turns, id=str(i)) for i, (turns, _) in enumerate(split)]
    parallel = [together(*first, id=str(i)) for i, (_, first) in enumerate(split)]
    got = means(evaluate_metrics(sequential, parallel, equivalent))
    assert got["m1@t1"] == got["accuracy@t1"]
    assert got["m1@t1"] <= got["p1@t2"] <= got["p1@t3"]
    assert got["m1@t3"] <= got["p1@t3"]
    assert got["p1@t3"] >= max(got[f"accuracy@t{k}"] for k in (1, 2, 3))
    assert all(0 <= value <= 1 for name, value in got.items() if "-" not in name)


def test_an_oracle_run_s_plot_shows_the_share_solved_by_each_turn() -> None:
    stopped = [answers("2", "1", id="a"), answers("1", id="b"), answers("2", "2", "2", id="c")]
    parallel = [together("2", id="a"), together("1", id="b"), together("2", id="c")]
    rows = accuracy_rows(evaluate_metrics(stopped, parallel, equivalent, turns=3, oracle=True))
    assert [row["accuracy"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert [row["majority"] for row in rows] == [pytest.approx(1 / 3), "", ""]


def test_an_answer_joins_a_class_by_its_first_member_only() -> None:
    def close(one: str, other: str) -> bool:
        return abs(int(one) - int(other)) <= 1

    assert majority(["1", "2", "3", "3", "3"], close) == 2  # 3 is close to 2, but not to 1


def test_problems_without_a_chance_do_not_change_a_rate_s_standard_error() -> None:
    assert ratio([(1, 1), (0, 1), (0, 0), (0, 0)]) == ratio([(1, 1), (0, 1)])


def test_a_difference_over_a_single_task_is_never_beyond_its_error() -> None:
    assert not beyond({"mean": 1.0, "se": 0.0, "n": 1})
    assert beyond({"mean": 1.0, "se": 0.0, "n": 2})


def test_only_a_difference_of_more_than_three_standard_errors_is_beyond_them() -> None:
    assert [beyond({"mean": mean, "se": 0.25, "n": 9}) for mean in (0.76, -0.76, 0.75, 0.0)] == [
        True,
        True,
        False,
        False,
    ]


def test_the_difference_of_independent_estimates_has_the_smaller_number_of_tasks() -> None:
    one, other = {"mean": 0.5, "se": 0.3, "n": 7}, {"mean": 0.75, "se": 0.4, "n": 4}
    for a, b, mean in ((one, other, -0.25), (other, one, 0.25)):
        assert unpaired_difference(a, b) == {"mean": mean, "se": 0.5, "n": 4}
