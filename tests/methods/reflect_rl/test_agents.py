"""Agents without trained weights, and the episodes of an evaluation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError, Request
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.registry import listed_env
from selfimprove.methods.reflect_rl.agents import make_agent, play_agent
from selfimprove.methods.reflect_rl.episode import RLEpisode, episode_id
from selfimprove.methods.reflect_rl.evaluate import EvaluationEpisode, evaluation_episodes
from selfimprove.methods.reflect_rl.params import AgentParams, EvaluateParams
from selfimprove.methods.reflect_rl.teacher import ANALYZE, CHOOSE, SYSTEM, analysis_request, read_choice
from tests.methods.reflect_rl.corridor import DeadEnd, nan_cost

ENV = listed_env().make()
KEY = SeedKey(1, "61--0")


def played(
    kind: Any, answer: Any = None, env: Any = ENV, task: int = 61, episode: int = 0, level: str = "full"
) -> RLEpisode:
    cfg = AgentParams(kind=kind, engine="chat" if answer else None)
    agent = make_agent(cfg, ScriptedEngine(answer) if answer else None)
    return asyncio.run(play_agent(task, env, agent, KEY, level, episode=episode))


def test_the_expert_solves_a_task_within_max_turns() -> None:
    one = played("expert")
    assert (one.status, one.id) == ("solved", "taxi-61-full-0")
    assert [step.command for step in one.steps][-1] == "drop off passenger"
    assert one.cost == pytest.approx(0.05 * (len(one.steps) - 2) - 2)


@pytest.mark.parametrize("kind", ["direct", "chat", "react"])
def test_steps_with_a_cut_answer_are_counted(kind: str) -> None:
    async def cut(request: Request) -> list[Completion]:
        return [Completion("1", "length")]

    engine = ScriptedEngine(lambda request, index: "")
    engine.generate = cut  # type: ignore[method-assign]
    agent = make_agent(AgentParams(kind=kind, engine="chat"), engine)  # type: ignore[arg-type]
    one = asyncio.run(play_agent(61, ENV, agent, KEY, "full"))
    assert [step.cut for step in one.steps] == [True] * len(one.steps) != []


def test_the_random_agent_depends_only_on_the_seed_key() -> None:
    one, same = played("random"), played("random")
    assert one == same
    agent = make_agent(AgentParams(kind="random"), None)
    others = {asyncio.run(play_agent(61, ENV, agent, SeedKey(1, str(i)), "full")).steps[0].label for i in range(30)}
    assert others == set(ENV.labels)


def test_the_direct_agent_sends_one_request_per_step() -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "Action 1"

    one = played("direct", answer)
    assert [step.label for step in one.steps] == ["1", "1"]  # to the passenger, then into the wall
    assert (one.status, one.steps[-1].cost) == ("unsolved", 0.5)
    assert len(requests) == 2
    assert len(requests[1].messages) == 2
    assert "The actions you can take now is:\nAction 0" in requests[0].messages[1].content


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("taxi", "An action that changes nothing, as driving into a wall, is dangerous and ends the game."),
        ("autoexplore", "id names a file as your answer, which ends the task"),
        ("alfworld", "You can carry one object at a time."),
        ("textcraft", ""),
    ],
)
def test_the_prompt_of_a_chat_model_has_the_rules_but_no_answer_format(name: str, rule: str) -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "0"

    env = listed_env(name=name, max_turns=1).make()
    played("direct", answer, env, env.task_ids()[0], level="")
    (system, _), *_ = [request.messages for request in requests]
    assert system.content.startswith(SYSTEM)
    assert rule in system.content
    assert "Answer each time" not in system.content
    assert analysis_request(env, None, exploring=False)[0] == system


def test_an_answer_that_equals_a_command_is_that_action() -> None:
    one = played("direct", lambda request, sample: " move north\n")
    assert [step.label for step in one.steps] == ["1", "1"]


def test_a_command_after_the_word_action_is_that_action_although_a_number_precedes_it() -> None:
    """``It is 2 rows off. Action: move west`` was once label 2, move east."""
    ENV.reset(61)
    for text in ("It is 2 rows off.\nAction: move west", "Action: move west.", '**Action:** "move west"'):
        assert read_choice(text, ENV) == "3", text
    assert read_choice("It is 2 rows off.\nAction: move back", ENV) == "2"


def test_an_answer_that_repeats_the_word_action_is_read_in_linear_time() -> None:
    """In quadratic time, 50,000 repetitions took ten minutes, beyond every test's limit."""
    ENV.reset(61)
    assert read_choice("action:" * 50_000 + "\n3", ENV) == "3"


def test_a_number_within_a_command_is_not_read_as_a_label() -> None:
    """``cat "chapter 2.md"`` was once read as label 2."""
    labels = {"1": 'cat "chapter 2.md"', "2": 'id "chapter 2.md"', "3": 'cat "action 2.md"'}

    class Book(type(ENV)):  # type: ignore[misc]
        def commands(self) -> dict[str, str]:
            return labels

    env = Book()
    env.reset(61)
    assert [read_choice(text, env) for text in (*labels.values(), "2")] == ["1", "2", "3", "2"]
    assert [read_choice(f"{label}. {text}", env) for label, text in labels.items()] == ["1", "2", "3"]
    assert [read_choice(f"```\n{text}\n```", env) for text in labels.values()] == ["1", "2", "3"]
    assert read_choice(f"`{labels['1']}`", env) == "1"


def test_a_copied_line_of_the_list_of_actions_is_its_label() -> None:
    """``Action 0: go to cabinet 1`` was once no choice, and ``Action a: go to shelf 1`` was label 1."""
    env = listed_env(name="alfworld", labels="single").make()
    env.reset(env.task_ids()[0])
    lines = [(label, command) for label, command in env.commands().items() if command[-1].isdecimal()]
    assert {label.isdecimal() for label, _ in lines} == {True, False}
    for label, command in lines:
        line = f"Action {label}: {command}"
        for text in (line, f"Action: {line}", f'"{command}"', f"> {command}."):
            assert read_choice(text, env) == label, text
        assert read_choice(f"I look there.\n{line}\nIt may help.", env) == label
        assert read_choice(command.upper(), env) is None
    label, other = lines[0][0], lines[1][1]
    assert read_choice(f"Action {label}: {other}", env) == label


def test_a_number_in_a_listed_command_is_never_the_label_of_another_one() -> None:
    """``a) go to microwave 1`` and ``I go to fridge 1, so 8.`` were once label 1, the command ``go to cabinet 2``."""
    env = listed_env(name="alfworld", labels="single").make()
    env.reset(env.task_ids()[0])
    for label, command in env.commands().items():
        for line in (f"{label}) {command}", f"({label}) {command}", f"[{label}] {command}.", f"{label} - {command}"):
            assert read_choice(line, env) == label, line
        for line in (f"{label}, {command}", f"{label} ({command})", f"**Action {label} - {command}**"):
            assert read_choice(f"It helps.\nAction: {line}", env) == read_choice(line, env) == label, line
        if label.isdecimal():
            assert read_choice(f"I {command}, so {label}.", env) == label
            assert read_choice(f"I want to {command.capitalize()} ({label})", env) == label
        assert read_choice(f"I would {command} to see what is there", env) is None


def test_an_unlisted_command_is_an_invalid_action_whatever_numbers_it_contains() -> None:
    """``go to fridge 1`` was once read as label 1, and ``cat 3.py`` as label 3."""
    env = listed_env(name="alfworld").make()
    env.reset(env.task_ids()[0])
    numbered = [command for command in env.commands().values() if command.startswith("go to")]
    thing, number = numbered[0].rsplit(" ", 1)
    for text in (f"{thing} 9{number}", f"open {thing.split()[-1]} 1.", f"take apple 1 from {numbered[1][6:]}"):
        assert text not in env.commands().values()
        assert read_choice(text, env) is None
        assert read_choice(f"`{text}`", env) is None
        assert read_choice(f"I look there.\nAction: {text}", env) is None
    listed = next(label for label, command in env.commands().items() if command == numbered[0])
    said = (numbered[0], f"I look.\n**Action:** `{numbered[0]}`", f"Action: 1. {numbered[0]}", "I take 3.", "3, not 1")
    assert [read_choice(text, env) for text in said] == [listed, listed, "1", "3", "3"]
    ENV.reset(61)
    others = ("cat 3.py", "cd src/3", "move 3", "move south (2)")
    assert [read_choice(text, ENV) for text in others] == [None, None, "3", "2"]


def test_the_react_agent_alternates_analysis_and_choice_in_one_dialogue() -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "The passenger is north." if request.messages[-1].content.endswith(ANALYZE) else "1"

    one = played("react", answer)
    assert [len(request.messages) for request in requests] == [2, 4, 6, 8]
    assert [request.messages[-1].content.endswith(CHOOSE) for request in requests] == [False, True, False, True]
    assert one.steps[0].reflection == "The passenger is north."
    again = played("react", answer)  # the next episode starts a new dialogue
    assert again == one
    assert len(requests[4].messages) == 2


def test_the_chat_agent_starts_a_new_dialogue_at_each_step() -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "It is north." if request.messages[-1].content.endswith(ANALYZE) else "1."

    played("chat", answer)
    assert [len(request.messages) for request in requests] == [2, 4, 2, 4]
    assert len({request.seed for request in requests}) == 4


@pytest.mark.parametrize("kind", ["direct", "chat", "react"])
def test_chat_models_sample_with_the_settings_of_their_agent(kind: Any) -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "1"

    default, other = AgentParams(kind=kind, engine="chat"), {"temperature": 0.2, "top_p": 0.5, "max_tokens": 9}
    for cfg in (default, AgentParams.model_validate({"kind": kind, "engine": "chat"} | other)):
        requests.clear()
        asyncio.run(play_agent(61, ENV, make_agent(cfg, ScriptedEngine(answer)), KEY, "full"))
        assert {(r.temperature, r.top_p, r.max_tokens) for r in requests} == {
            (cfg.temperature, cfg.top_p, cfg.max_tokens)
        }
    assert (default.temperature, default.top_p) == (0.7, 0.9)


def test_an_answer_without_a_label_is_an_invalid_action() -> None:
    env = listed_env(name="alfworld", max_turns=3).make()
    cfg = AgentParams(kind="direct", engine="chat")
    agent = make_agent(cfg, ScriptedEngine(lambda request, sample: "I am not sure."))
    one = asyncio.run(play_agent(env.task_ids()[0], env, agent, KEY))
    assert [(step.label, step.valid, step.command) for step in one.steps] == [("", False, None)] * 3
    assert one.status == "unsolved"


@pytest.mark.parametrize("kind", ["random", "expert"])
def test_if_no_action_is_listed_random_and_expert_agents_use_up_the_steps(kind: Any) -> None:
    class Closed(DeadEnd):
        def commands(self) -> dict[str, str]:
            return {}

    one = played(kind, env=Closed())
    assert [(step.label, step.valid) for step in one.steps] == [("", False)] * 4
    assert one.status == "unsolved"


def test_a_cost_that_is_not_a_number_is_refused_with_its_action_and_task() -> None:
    with pytest.raises(UserError, match=r"corridor: action '1' in task 1 returned cost nan"):
        played("direct", lambda request, sample: "1", env=nan_cost(), task=1)


def test_an_engine_failure_blocks_the_episode() -> None:
    def answer(request: Request, sample: int) -> str:
        raise EngineError("the endpoint is down")

    one = played("chat", answer)
    assert (one.status, one.error, one.steps) == ("blocked", "the endpoint is down", [])


def test_every_task_is_evaluated_eval_reps_times_at_each_level() -> None:
    cfg = EvaluateParams(eval_reps=2, levels=["pickup", "full"])
    asked = evaluation_episodes(ENV, [5, 3], cfg)
    assert asked == [
        EvaluationEpisode(task, level, rep) for level in ("pickup", "full") for task in (5, 3) for rep in (0, 1)
    ]
    assert len({game.key(1) for game in asked}) == len(asked)
    assert len(evaluation_episodes(ENV, [5], cfg, reps=7)) == 14
    assert {game.level for game in evaluation_episodes(ENV, [5], EvaluateParams())} == set(ENV.levels)
    with pytest.raises(UserError, match="no level 'night'"):
        evaluation_episodes(ENV, [5], EvaluateParams(levels=["night"]))
    with pytest.raises(UserError, match="split test has no task"):
        evaluation_episodes(ENV, [], EvaluateParams())


def test_agents_and_models_name_their_episodes_alike() -> None:
    from selfimprove.methods.reflect_rl.rollout import play

    cfg = EvaluateParams(max_tokens=5)
    policy = ScriptedEngine(lambda request, sample: "1")
    one = asyncio.run(play(61, ENV, None, policy, cfg, KEY, "full", episode=3))
    assert one.id == episode_id("taxi", 61, "full", 3) == played("expert", episode=3).id
