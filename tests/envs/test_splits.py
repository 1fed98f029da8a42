"""Splits: dev and test contain nothing that was trained on, whichever method draws the tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.alfworld.kitchen_games import make_game
from selfimprove.envs.interface import AgentEnv, MakesProblems, Problem, name_of
from selfimprove.envs.registry import answer_env, listed_env, text_env
from selfimprove.envs.splits import HeldOut, Shared, draw_splits
from selfimprove.methods.agent_r import tasks as agent_r
from selfimprove.methods.agent_r.params import TaskParams as AgentRTasks
from selfimprove.methods.reflect_rl import tasks as reflect_rl
from selfimprove.methods.reflect_rl.params import TaskParams as ReflectRLTasks
from selfimprove.methods.spin.acting import gather_acted
from selfimprove.methods.spin.params import TasksParams as SpinTasks

COUNTS: dict[str, Any] = {"demonstrations": 60, "train": 40, "dev": 20, "test": 40}
WHOLE: dict[str, Any] = {"train": 100, "dev": 20, "test": 40}
QUESTIONS: dict[str, Any] = {"name": "encyclopedia", "people": 60, "distractors": 0, "questions": 100}
MIXED: dict[str, Any] = {"name": "mixture", "parts": [QUESTIONS, {"name": "taxi"}]}
JUDGED = ("dev", "test")


def questions_of(env: Mapping[str, Any], seed: int) -> dict[str, list[Problem]]:
    plans = answer_env(**env).make()
    assert isinstance(plans, MakesProblems)
    return plans.problems(COUNTS, seed=seed)


def rise(env: Mapping[str, Any], seed: int) -> dict[str, list[int]]:
    problems = questions_of(env, seed)
    return {name: [int(one.id.rpartition("-")[2]) for one in problems[name]] for name in COUNTS}


def by_agent_r(env: Mapping[str, Any], seed: int) -> dict[str, list[int]]:
    return agent_r.build_splits(AgentRTasks(**COUNTS, layouts=1), text_env(**env).make(), seed=seed)


def by_reflect_rl(env: Mapping[str, Any], seed: int) -> dict[str, list[int]]:
    splits = reflect_rl.build_splits(ReflectRLTasks(**WHOLE), listed_env(**env).make(), seed=seed)
    return {name: splits[name] for name in reflect_rl.SPLITS}


def spin(env: Mapping[str, Any], seed: int) -> dict[str, list[int]]:
    made = gather_acted(SpinTasks.model_validate(WHOLE), text_env(**env).make(), seed=seed).splits
    return {name: [int(one.id.rpartition("-")[2]) for one in those] for name, those in made.items()}


DRAWS = {"rise": rise, "agent_r": by_agent_r, "reflect_rl": by_reflect_rl, "spin": spin}


def asked(env: AgentEnv, task: int) -> tuple[str, tuple[str, ...], str]:
    """A question, the expert's searches, and the expert's last action, which contains the answer."""
    question = env.reset(task)
    *searches, last = [move.action for move in env.expert()]
    return question, tuple(searches), last


@pytest.mark.parametrize("keys", [QUESTIONS, MIXED], ids=["alone", "in a mixture"])
@pytest.mark.parametrize("method", DRAWS)
def test_no_dev_or_test_question_has_the_paragraphs_and_the_answer_of_a_training_question(
    method: str, keys: Mapping[str, Any]
) -> None:
    env = text_env(**keys).make()
    for seed in range(17, 23):
        splits = DRAWS[method](keys, seed)
        tasks = [task for ids in splits.values() for task in ids]
        assert len(tasks) == len(set(tasks)) == 160
        questions = {
            name: [asked(env, task) for task in ids if name_of(env, task) == "encyclopedia"]
            for name, ids in splits.items()
        }
        assert len(questions["test"]) == (40 if keys is QUESTIONS else 20)
        trained = [one for name, those in questions.items() if name not in JUDGED for one in those]
        answered = {(frozenset(searches), last) for _, searches, last in trained}
        seen = {search for _, searches, _ in trained for search in searches}
        for question, searches, last in (*questions["dev"], *questions["test"]):
            assert (frozenset(searches), last) not in answered
            assert question not in {other for other, _, _ in trained}
            assert searches[0] not in seen  # the entry in question; all splits share towns and rivers


def test_no_other_split_of_rise_contains_entries_that_test_questions_ask_about() -> None:
    problems = questions_of(QUESTIONS, 17)
    env = text_env(**QUESTIONS).make()
    entries = {asked(env, int(one.id.rpartition("-")[2]))[1][0] for one in problems["test"]}
    texts = [one.question for name in ("demonstrations", "train", "dev") for one in problems[name]]
    assert len(entries) > 20
    for entry in entries:
        assert not any(entry.removeprefix("search[").removesuffix("]") in text for text in texts)


@pytest.mark.parametrize("name", ["textcraft", "taxi", "gsm8k"])
def test_no_task_has_two_ids(name: str) -> None:
    env = text_env(name=name).make()
    tasks = env.task_ids()
    assert len({env.reset(task) for task in tasks}) == len(tasks)


def test_no_kitchen_has_two_ids() -> None:
    """Compares the games, because different kitchens may start with the same observation."""
    tasks = text_env(name="alfworld").make().task_ids()
    games = [make_game(0, task, "tomato", "microwave") for task in tasks]
    assert len({(game.goal, game.receptacles, game.things, game.first) for game in games}) == len(tasks) == 1100


def test_methods_that_request_equal_counts_get_equal_tasks() -> None:
    drawn = {method: draw(QUESTIONS, 5) for method, draw in DRAWS.items()}
    for splits in drawn.values():
        assert (splits["dev"], splits["test"]) == (drawn["spin"]["dev"], drawn["spin"]["test"])
        assert splits["train"] + splits.get("demonstrations", []) == drawn["spin"]["train"]


def test_the_test_split_does_not_depend_on_the_size_of_other_splits() -> None:
    ids = HeldOut({"train": range(30), "dev": range(30, 40), "test": range(40, 50)}, "set more")
    assert list(ids) == list(range(50))
    few = draw_splits("a", ids, {"test": 4}, seed=1)
    many = draw_splits("a", ids, {"test": 4, "dev": 10, "train": 20, "demonstrations": 10}, seed=1)
    assert few["test"] == many["test"]
    assert sorted(many["train"] + many["demonstrations"]) == list(range(30))
    mixed = draw_splits("a+b", Shared({"a": ids, "b": range(50, 99)}, [0.5, 0.5]), {"test": 8, "train": 8}, seed=1)
    assert {task for task in mixed["test"] if task < 50} == set(few["test"])


def test_too_few_held_out_tasks_are_refused_with_a_remedy() -> None:
    env = text_env(**QUESTIONS).make()
    with pytest.raises(UserError) as refused:
        agent_r.build_splits(AgentRTasks(**{**COUNTS, "test": 43}, layouts=1), env, seed=1)
    assert str(refused.value) == (
        "agent_r.tasks.test: 43 tasks of encyclopedia are requested, but 42 of the 42 for test are left; request "
        "fewer, or "
        "raise env.questions."
    )
    with pytest.raises(UserError, match=r"demonstrations: 61 tasks of .* 60 of the 100 for train are left; request f"):
        agent_r.build_splits(AgentRTasks(**{**COUNTS, "demonstrations": 61}, layouts=1), env, seed=1)


def test_more_questions_than_the_encyclopedia_has_are_refused() -> None:
    keys = {**QUESTIONS, "questions": 2000, "comparisons": 0, "hops": {1: 1.0}}
    with pytest.raises(
        UserError, match=r"^the encyclopedia has \d+ questions for the \w+ split, but \d+ are requested"
    ):
        text_env(**keys).make()


def test_with_a_file_of_training_tasks_test_is_still_drawn_from_the_held_out_tasks(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps(list(range(60))))
    cfg = AgentRTasks(demonstrations=20, train=20, dev=0, test=40, layouts=1, files={"train": str(file)})
    env = text_env(**QUESTIONS).make()
    splits = agent_r.build_splits(cfg, env, seed=1)
    assert set(splits["test"]) <= set(range(125, 167))
    assert set(splits["train"]) <= set(range(60))


def test_without_counts_reflect_rl_has_the_largest_7_2_1_split_of_the_held_out_tasks() -> None:
    splits = reflect_rl.build_splits(ReflectRLTasks(), listed_env(**QUESTIONS).make(), seed=1)
    assert {name: len(ids) for name, ids in splits.items()} == {"train": 88, "dev": 25, "test": 12}
