"""Plans, for RISE: a task of an environment with actions as a problem with one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import CarriesOut, MakesProblems, Problem, WritesRows
from selfimprove.envs.own import TextEnv
from selfimprove.envs.plans import NOTHING, Plans, actions_of
from selfimprove.envs.registry import answer_env, text_env
from selfimprove.methods.agent_r.params import TaskParams
from selfimprove.methods.agent_r.tasks import build_splits

COUNTS = {"demonstrations": 6, "train": 5, "dev": 2, "test": 4}
ACTED = [
    {"name": "textcraft"},
    {"name": "webshop", "products": 300},
    {"name": "taxi"},
    {"name": "alfworld"},
    {"name": "encyclopedia", "people": 60, "questions": 60},
    {"name": f"{__name__.replace('test_plans', 'own_worlds')}:Corridor", "options": {}},
]
WHERE = Path("rows.jsonl")


def made(env: Mapping[str, Any]) -> tuple[Plans, dict[str, list[Problem]]]:
    plans = answer_env(**env).make()
    assert isinstance(plans, Plans)
    counts = {name: 1 for name in COUNTS if name != "dev"} if "Corridor" in env["name"] else COUNTS
    return plans, plans.problems(counts, seed=7)


@pytest.mark.parametrize("env", ACTED, ids=lambda env: env["name"].rpartition(":")[2])
def test_the_experts_plan_earns_1_a_slip_earns_less_and_rows_load_as_the_same_problems(env: Mapping[str, Any]) -> None:
    plans, splits = made(env)
    assert isinstance(plans, CarriesOut)
    assert isinstance(plans, MakesProblems)
    assert isinstance(plans, WritesRows)
    everything = [problem for problems in splits.values() for problem in problems]
    assert len({problem.id for problem in everything}) == len(everything)
    for problem in everything:
        right = plans.demonstration(problem)
        assert plans.grade(right, problem) == (1.0, plans.extract(right))
        assert plans.grade(plans.slip(problem, 3), problem).reward < 1
        assert plans.slip(problem, 3) == plans.slip(problem, 3)
        for row in (plans.row(problem), {"task": plans.row(problem)["task"]}):
            assert plans.load([(1, row)], WHERE) == [problem]


def test_problems_of_the_encyclopedia_contain_a_question_and_its_paragraphs() -> None:
    env, splits = made({"name": "encyclopedia", "people": 60, "questions": 60})
    for problem in splits["test"]:
        rule, *paragraphs, question = problem.question.replace("\n\n", "\n").split("\n")
        assert "end with finish[answer]" in rule
        assert question.endswith("?")
        assert len(set(paragraphs)) == len(paragraphs) >= 2
        *thoughts, last = problem.answer.split("\n")
        assert last == f"finish[{problem.gold}]"
        assert thoughts
    answered = asyncio.run(env.carry_out(f"It is\nfinish[x] or finish[ {problem.gold} ]", problem))
    assert answered == ((1.0, problem.gold), f"> finish[{problem.gold}]\nThe episode ended.")
    assert env.equivalent("New Town", "new  town")
    right = [problem.gold, f"the {problem.gold}", f"{problem.gold}.", problem.gold.upper()]
    assert [env.grade(f"finish[{answer}]", problem).reward for answer in right] == [1.0] * 4
    assert all(env.equivalent(one, other) for one in right for other in right)
    assert not env.equivalent(None, None)
    assert env.grade("It is Tolma.", problem) == (0.0, None)


def test_every_attempt_starts_from_a_fresh_reset() -> None:
    plans, splits = made({"name": "textcraft"})
    one, other = splits["train"][:2]
    half = "\n".join(one.answer.split("\n")[:-1])
    before = asyncio.run(plans.carry_out(half, one))
    for attempt, problem in ((one.answer, one), (other.answer, other), ("", one)):
        asyncio.run(plans.carry_out(attempt, problem))
    assert asyncio.run(plans.carry_out(half, one)) == before
    assert before[0].reward == 0


def test_the_feedback_reports_what_happened_and_its_length_is_limited() -> None:
    plans, splits = made({"name": "textcraft"})
    problem = splits["train"][0]
    first, *_ = problem.answer.split("\n")
    grade, told = asyncio.run(plans.carry_out(f"sing\n{first}", problem))
    assert told == f"> sing\nCould not execute sing\n> {first}\nGot{first.removeprefix('get')}"
    assert grade == (0.0, f"sing\n{first}")
    _, told = asyncio.run(plans.carry_out(f"{problem.answer}\ndance\nrest", problem))
    last = problem.answer.rpartition("\n")[2]
    assert told.endswith(f"\n> {last}\nThe episode ended, 2 actions early.")
    assert asyncio.run(plans.carry_out(problem.answer, problem))[1].endswith(f"\n> {last}\nThe episode ended.")
    _, told = asyncio.run(plans.carry_out("\n".join(["x" * 9_000] * 50), problem))
    assert len(told) <= 1500 + 50
    assert asyncio.run(plans.carry_out("\n Thought: none\n", problem)) == ((0.0, None), NOTHING)


def test_lines_are_parsed_as_actions_without_numbers_bullets_or_prefixes() -> None:
    said = "Thought: first\n1. get 2 clay\n2) craft 1 pot using 2 clay\n\n- look\nAction: 3 go\n> rest"
    plain = ["get 2 clay", "craft 1 pot using 2 clay", "look", "3 go", "rest"]
    assert actions_of(said, 9) == plain
    assert actions_of(said, 2) == plain[:2]
    assert Plans(made({"name": "taxi"})[0]._env).extract(said) == "\n".join(plain)


def test_splits_depend_on_the_seed_and_a_larger_train_split_does_not_change_the_test_split() -> None:
    plans, splits = made({"name": "textcraft"})
    assert plans.problems(COUNTS, seed=7) == splits
    assert plans.problems({**COUNTS, "train": 50}, seed=7)["test"] == splits["test"]
    assert plans.problems(COUNTS, seed=8)["test"] != splits["test"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            {"few_shot": True},
            "the worked example is a mathematics problem, but this environment has other tasks; set false",
        ),
        ({"told": 200, "max_actions": 30}, "told: 200 characters are too few for 30 actions; set at least 300"),
        ({"jvms": 3}, "jvms is an option of sciworld, but name is textcraft; remove it"),
    ],
)
def test_unsuitable_options_are_refused(env: Mapping[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        answer_env(name="textcraft", **env)


def test_too_many_tasks_too_few_actions_and_invalid_rows_are_refused() -> None:
    plans, _ = made({"name": "textcraft"})
    with pytest.raises(
        UserError, match=r"tasks\.train: 9000 tasks of textcraft are requested, but \d+ of \d+ are left; request"
    ):
        plans.problems({"train": 9000}, seed=1)
    short = answer_env(name="textcraft", max_actions=1).make()
    assert isinstance(short, Plans)
    with pytest.raises(
        UserError, match=r"textcraft-\d+: the expert's plan ends with reward 0 instead of 1 within 1 act"
    ):
        short.problems({"demonstrations": 20}, seed=1)
    for row in ({"task": -1}, {"task": True}, {"question": "?"}):
        with pytest.raises(UserError, match=r"rows\.jsonl, line 4: 'task' must be a task of textcraft"):
            plans.load([(4, row)], WHERE)
    with pytest.raises(UserError, match=r"rows\.jsonl, line 4: task 5 is in line 2 too; delete one of them"):
        plans.load([(2, {"task": 5}), (4, {"task": 5})], WHERE)


class Bullet(TextEnv):
    """Its only action begins like an item of a list."""

    instruction = "Push."
    actions = ("- push",)

    def begin(self, task_id: int) -> str:
        return "A door."

    def act(self, action: str) -> tuple[str, float, bool]:
        return "It opens.", 1.0, True


def test_an_experts_action_that_a_plan_reads_as_another_is_named() -> None:
    with pytest.raises(UserError, match=r"the expert's action '- push' is read as \['push'\] in a plan, which has one"):
        Plans(Bullet()).problems({"demonstrations": 1}, seed=1)


def test_rise_has_the_test_split_of_agent_r() -> None:
    asked: dict[str, Any] = {"demonstrations": 3, "train": 4, "dev": 2, "test": 9}
    drawn = build_splits(TaskParams(**asked, layouts=1), text_env(name="textcraft").make(), seed=11)
    plans, _ = made({"name": "textcraft"})
    splits = plans.problems(asked, seed=11)
    assert [problem.id for problem in splits["test"]] == [f"textcraft-{task}" for task in drawn["test"]]
