"""Scores, success, loops, revision lengths and result rows (docs/agent-r.md, A32)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.outcomes import compare
from selfimprove.core.records import Attempt, Episode, Turn
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.methods.agent_r.metrics import (
    eval_row,
    evaluate_metrics,
    final_score,
    is_success,
    outcomes,
    over_environments,
    repeated_blocks,
    repeated_runs,
    revision_lengths,
    search_metrics,
)
from selfimprove.methods.agent_r.params import EvaluateParams
from selfimprove.methods.agent_r.play import play
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.trees import PROMPT, by_hand, grown


def episode(
    said: str, reward: Any = 0.0, *, given: int = 0, task: int = 1, env: Any = "corridor", status: Any = "unsolved"
) -> Episode:
    """An episode of one letter per action: ``w`` waits, ``x`` is invalid. The first ``given`` turns are given."""
    turns = [
        Turn(
            model="given" if i < given else "actor",
            attempts=[
                Attempt(
                    text=f"Thought: t\nAction: {letter}",
                    answer="wait" if letter == "w" else letter,
                    reward=reward if i == len(said) - 1 else 0.0,
                    valid=letter != "x",
                )
            ],
            chosen=0,
            observation=f"saw {letter}",
        )
        for i, letter in enumerate(said)
    ]
    name = f"{env}-{task}" + ("-00000000000000aa" if given else "")
    return Episode(
        id=name, env=env, query="q", gold="", prompt=PROMPT, turns=turns,
        status="solved" if reward == 1 else status, seed=f"0/{name}",
    )  # fmt: skip


def mean(metric: dict) -> float:
    return metric["mean"]


def test_score_success_steps_and_invalid_actions_are_measured() -> None:
    metrics = evaluate_metrics([episode("abc", 1.0, task=1), episode("axxa", 0.4, task=2), episode("", task=3)])
    assert metrics["score"]["mean"] == pytest.approx(140 / 3)  # times 100
    assert metrics["score"]["se"] == pytest.approx(math.sqrt((53.3333**2 + 6.6667**2 + 46.6667**2) / 2 / 3), rel=1e-4)
    assert metrics["score"]["n"] == 3
    assert mean(metrics["success"]) == pytest.approx(1 / 3)
    assert mean(metrics["steps"]) == pytest.approx(7 / 3)
    assert metrics["invalid"]["mean"] == pytest.approx(2 / 7)
    assert metrics["invalid"]["n"] == 7
    assert mean(metrics["blocked"]) == 0
    assert not [name for name in metrics if name.startswith("revision_") and not name.startswith("revision_length")]


def test_only_the_exact_maximum_reward_is_a_success() -> None:
    assert [is_success(episode("a", reward)) for reward in (1.0, 0.999, 100.0, 0.0)] == [True, False, False, False]
    assert final_score(episode("a", -1.0)) == 0
    blocked = episode("ab", 0.5, status="blocked")
    assert final_score(blocked) == 0.5
    assert not is_success(blocked)
    assert mean(evaluate_metrics([blocked, episode("a", task=2)])["blocked"]) == 0.5


def test_the_score_is_the_last_one_even_if_an_earlier_one_was_higher() -> None:
    high, low = episode("a", 1.0), episode("b", 0.25)
    both = high.model_copy(update={"turns": [*high.turns, *low.turns], "status": "unsolved"})
    assert final_score(both) == 0.25
    assert not is_success(both)
    assert eval_row(both, "m")["env_score"] == 0.25
    assert mean(evaluate_metrics([both])["score"]) == 25.0


def test_environments_are_reported_separately_and_averaged_with_equal_weight() -> None:
    played = [episode("a", 1.0, task=i) for i in range(3)] + [episode("ab", 0.0, task=3)]
    played += [episode("abc", 0.5, task=i, env="webshop") for i in range(2)]
    metrics = evaluate_metrics(played)
    assert {name: mean(one["score"]) for name, one in metrics["environments"].items()} == {
        "corridor": 75.0, "webshop": 50.0
    }  # fmt: skip
    assert mean(metrics["average"]["score"]) == 62.5  # over all episodes it is 66.7
    assert metrics["average"]["score"]["se"] == pytest.approx(25 / 2)
    assert metrics["average"]["score"]["n"] == 6
    assert mean(metrics["average"]["success"]) == pytest.approx(0.375)
    assert {name: one["invalid"]["n"] for name, one in metrics["environments"].items()} == {"corridor": 5, "webshop": 6}
    assert mean(metrics["score"]) == pytest.approx(400 / 6)
    assert "average" not in evaluate_metrics(played[:4])


def test_runs_of_repeated_actions_are_counted_by_length() -> None:
    assert repeated_runs("aabccca") == [2, 3]
    assert repeated_runs("abab") == []
    assert repeated_runs("") == []
    metrics = evaluate_metrics([episode("aabccca"), episode("dd", task=2), episode("e", task=3)])
    assert metrics["repeated_runs"] == {"2": 2, "3": 1}
    assert metrics["repeated_blocks"]["1"] == {"2": 2, "3": 1}
    assert metrics["repeated"]["mean"] == pytest.approx(4 / 10)


def test_a_revision_length_is_the_number_of_steps_before_a_revision_turn() -> None:
    assert revision_lengths(episode("abcwd")) == [3]
    assert revision_lengths(episode("abwcdew")) == [2, 3]
    assert revision_lengths(episode("wabww")) == [2]  # no bad step before the first wait, nor before the last
    assert revision_lengths(episode("abc")) == []
    assert revision_lengths(episode("abcdw", given=3)) == [4]
    assert revision_lengths(episode("awbw", given=3)) == [3]  # a given wait is not a revision by the policy
    metrics = evaluate_metrics([episode("abwcdew"), episode("abc", task=2)], [episode("abw", given=2)])
    assert metrics["revision_lengths"] == {"2": 2, "3": 1}
    assert mean(metrics["revision_length"]) == pytest.approx(7 / 3)
    assert mean(metrics["revised"]) == 0.5
    assert mean(metrics["revisions"]) == 1.0
    assert mean(metrics["revision_revised"]) == 1.0


def test_given_turns_do_not_count_as_steps_of_the_policy() -> None:
    metrics = evaluate_metrics(
        [episode("a", task=2)], [episode("xxab", 1.0, given=2), episode("xxxx", given=4, task=3)]
    )
    assert mean(metrics["revision_score"]) == 50.0
    assert mean(metrics["revision_success"]) == 0.5
    assert mean(metrics["revision_steps"]) == 1.0
    assert metrics["revision_invalid"] == {"mean": 0.0, "se": 0.0, "n": 2}
    assert mean(metrics["score"]) == 0
    assert metrics["score"]["n"] == 1
    assert not any(name.startswith("revision_s") for name in evaluate_metrics([episode("a")]))


def test_failures_and_limits_are_counted_in_given_beginnings_too() -> None:
    revised = episode("ab", given=1, status="blocked")
    revised.turns[0].attempt.finish, revised.turns[1].omitted = "length", 2
    metrics = evaluate_metrics([episode("cd", task=2)], [revised])
    assert [mean(metrics[name]) for name in ("blocked", "cut_completions", "shortened_prompts")] == [
        1 / 2,
        1 / 4,
        1 / 4,
    ]


def test_outcomes_of_two_runs_are_compared_task_by_task() -> None:
    better = outcomes([episode("a", 1.0), episode("ab", 0.5, task=2)], [episode("ab", 1.0, given=1)])
    worse = outcomes([episode("a", 0.0), episode("ab", 0.0, task=2)], [episode("ab", 0.0, given=1)])
    assert [row.id for row in better] == ["corridor-1", "corridor-2", "corridor-1-00000000000000aa"]
    differences = compare(better, worse)
    assert mean(differences["score"]) == 75.0
    assert differences["revision_score"]["n"] == 1
    assert mean(differences["revision_score"]) == 100.0


def played(task: int, *actions: str) -> Episode:
    def answer(request: Any, index: Any) -> str:
        return f"Thought: t\nAction: {actions[request.seed.turn]}"

    cfg = EvaluateParams(max_turns=len(actions))
    return asyncio.run(play(task, EmbeddedWorld(Corridor()), ScriptedEngine(answer), cfg, 0))


def test_metrics_of_played_episodes_match_their_actions() -> None:
    both = [played(6, "hm", "right", "wait", "right", "take key", "open door"), played(0, "take key", "open door")]
    metrics = evaluate_metrics(both)
    assert mean(metrics["success"]) == 0.5
    assert mean(metrics["steps"]) == 4.0
    assert metrics["invalid"]["mean"] == pytest.approx(3 / 8)  # "hm", "take key" and "open door"
    assert metrics["revision_lengths"] == {"2": 1}


def test_result_rows_have_the_original_s_format() -> None:
    row = eval_row(played(0, "take key", "wait", "open door"), "tiny")
    assert list(row) == ["task_id", "env_score", "model_name", "step_num", "state"]
    assert (row["task_id"], row["env_score"], row["model_name"], row["step_num"]) == ("0", 1.0, "tiny", 3)
    assert eval_row(episode("a", 2 / 3), "tiny")["env_score"] == 2 / 3  # as in WebShop, unrounded
    assert [m["role"] for m in row["state"]] == ["system", "user", "assistant", "user", *["assistant", "user"] * 3]
    assert row["state"][6:8] == [
        {"role": "assistant", "content": "Thought: t\nAction: wait"}, {"role": "user", "content": "ok."}
    ]  # fmt: skip
    given = eval_row(episode("abc", 0.07, given=2, task=417, env="sciworld"), "tiny")
    assert (given["task_id"], given["env_score"], given["step_num"]) == ("417", 7.0, 1)
    mixed = episode("abc", 0.07, given=2, task=417, env="sciworld").model_copy(update={"id": "sciworld+webshop-834"})
    assert (eval_row(mixed, "tiny")["task_id"], eval_row(mixed, "tiny")["env_score"]) == ("834", 7.0)


def test_search_metrics_match_trees_built_by_hand() -> None:
    trees = [by_hand({"ab": 1.0, "ac": 0.0}), by_hand({"a": 0.5}, tree_id="corridor-2")]
    trees[0].status, trees[0].duplicates, trees[1].status = "solved", 1, "blocked"
    trees[0].nodes[2].valid = False
    trees[1].nodes[1].done = False
    metrics = search_metrics(trees)
    assert (metrics["trees"], metrics["nodes"], metrics["leaves"], metrics["blocked"]) == (2, 4, 3, 1)
    assert mean(metrics["solved"]) == 0.5
    assert mean(metrics["best"]) == 0.75
    assert mean(metrics["leaf_score"]) == 0.5
    assert mean(metrics["cut"]) == pytest.approx(1 / 3)
    assert mean(metrics["invalid"]) == 0.25
    assert mean(metrics["duplicates"]) == 0.2
    assert search_metrics([])["solved"] == {"mean": 0.0, "se": 0.0, "n": 0}


def test_search_metrics_of_searched_trees_match_their_nodes() -> None:
    trees = grown(range(4))
    metrics = search_metrics(trees)
    assert metrics["leaves"] == sum(len(tree.leaves()) for tree in trees)
    assert mean(metrics["solved"]) == sum(any(n.reward == 1 for n in tree.nodes) for tree in trees) / 4
    assert 0 < mean(metrics["invalid"]) < 1
    assert metrics["dives"] == sum(tree.dives for tree in trees)
    assert metrics["disasters"] == sum(node.action == "jump" for tree in trees for node in tree.nodes) > 0
    assert [search_metrics(trees, *counted)["diverged"] for counted in ((), (3,))] == [0, 3]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("A B A B", {2: [2]}),
        ("A B A B A B C", {2: [3]}),
        ("X A B A B A", {2: [2]}),
        ("A A A", {1: [3]}),
        ("A A A A", {1: [4]}),
        ("A B C A B C", {3: [2]}),
        ("A B C D A B C D A B C D", {4: [3]}),
        ("A B C D E A B C D E", {}),
        ("A B A B C C A B A B", {1: [2], 2: [2, 2]}),
        ("A B B A B B", {1: [2, 2], 3: [2]}),
        ("", {}),
        ("A", {}),
    ],
)
def test_repeated_blocks_are_counted_by_length_and_number_of_repetitions(said: str, found: Any) -> None:
    every = {length: found.get(length, []) for length in (1, 2, 3, 4)}
    assert repeated_blocks(said.split()) == every


@given(st.lists(st.sampled_from("ABC"), max_size=30))
def test_blocks_of_one_action_are_the_repeated_runs(actions: Any) -> None:
    assert repeated_blocks(actions)[1] == repeated_runs(actions)


def test_the_mean_over_no_environments_is_zero_of_none() -> None:
    assert over_environments([]) == {"mean": 0.0, "se": 0.0, "n": 0}


def test_the_errors_of_independent_environments_are_added_in_squares() -> None:
    one, other = {"mean": 1.0, "se": 3.0, "n": 2}, {"mean": 2.0, "se": 4.0, "n": 5}
    assert over_environments([one, other]) == {"mean": 1.5, "se": 2.5, "n": 7}


def test_a_given_invalid_action_is_not_the_policy_s() -> None:
    metrics = evaluate_metrics([episode("a")], [episode("xxab", given=2), episode("xxx", given=2, task=2)])
    assert mean(metrics["revision_invalid_actions"]) == 0.5


def test_a_blocked_episode_is_no_success_even_at_the_maximum_score() -> None:
    blocked = episode("ab", 1.0).model_copy(update={"status": "blocked"})
    assert final_score(blocked) == 1
    assert not is_success(blocked)


def test_runs_of_repeated_blocks_do_not_overlap() -> None:
    assert repeated_blocks(["A", "B", "A", "B", "C", "B", "C"])[2] == [2]  # the second B is part of the first run
