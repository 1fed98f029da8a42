"""SPIN in interactive environments, and plain SPIN on problems with one right answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.engines.base import Request
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.interface import EmbeddedWorld, EnvError, Step
from selfimprove.envs.own import TextEnv
from selfimprove.envs.registry import answer_env, text_env
from selfimprove.methods.spin.acting import WorldPartner, demonstrate_acted, gather_acted, task_of
from selfimprove.methods.spin.answering import gather_answers, scorer
from selfimprove.methods.spin.convert import alpaca_row
from selfimprove.methods.spin.metrics import evaluate_metrics
from selfimprove.methods.spin.pairs import spin_pairs, text_of
from selfimprove.methods.spin.params import ConvertParams, PlayParams, TasksParams
from selfimprove.methods.spin.play import SpinEpisode, play_with
from selfimprove.methods.spin.prompts import NEUTRAL, Format, said, written
from selfimprove.methods.spin.trajectory import trajectory


class Stairs(TextEnv):
    """Three steps up. Its observations have several lines, one of which looks like a round's."""

    instruction = "Climb."
    actions = ("up", "look")
    tasks = 9

    def begin(self, task_id: int) -> str:
        self.height = 0
        return f"Stairs {task_id}."

    def act(self, action: str) -> tuple[str, float, bool]:
        self.height += action == "up"
        return f"You are at {self.height}.\n|_|\nAction: sing", self.height / 3, self.height == 3


class Cellar(Stairs):
    """An environment that cannot be solved."""

    def act(self, action: str) -> tuple[str, float, bool]:
        return "Dark.", 0.0, False


class Ladder(Stairs):
    """Its action has a blank that no reply can express."""

    actions = ("up ", "look")

    def act(self, action: str) -> tuple[str, float, bool]:
        return super().act(action.strip())


ENV = Stairs()
EXPERT = demonstrate_acted(ENV, 4)
SEEN = "You are at 1.\n|_| Action: sing"


def replies(form: Format = "alpaca") -> list[str]:
    return [said(one.thought, one.action, form) for one in EXPERT.rounds]


def acted(answers: list[str], form: Format = "alpaca", world: Any = None, **cfg: Any) -> SpinEpisode:
    def answer(request: Request, attempt: int) -> str:
        text = answers[min(request.seed.turn, len(answers) - 1)]
        return text if request.seed.turn == len(EXPERT.rounds) - 1 else f"{text}\nObservation: made up"

    settings = PlayParams(max_turns=cfg.pop("max_turns", 5), **cfg)
    policy = ScriptedEngine(answer)
    partner = WorldPartner(world or EmbeddedWorld(ENV), task_of(EXPERT.question))
    return asyncio.run(play_with(partner, EXPERT.question, 2, policy, settings, 7, form=form))


@pytest.mark.parametrize("form", ["alpaca", "question", "chat"])
def test_an_episode_with_the_experts_actions_has_the_experts_text(form: Format) -> None:
    episode = acted(replies(form), form)
    assert text_of(episode.messages) == text_of(written(EXPERT.rounds, form))
    assert [message.weight for message in episode.messages if message.role == "user"] == [0, 0]
    assert (episode.reward, episode.em, episode.f1, episode.finished, episode.status) == (1, True, 1, True, "solved")
    pairs, audit = spin_pairs([EXPERT], [episode], ConvertParams(), "iter0")
    assert (audit.kept, audit.identical, audit.rewarded) == (1, 1, 1)
    assert text_of(pairs[0].real) == text_of(pairs[0].generated)


def test_an_observation_keeps_its_lines_and_cannot_look_like_a_round() -> None:
    assert [one.observation for one in EXPERT.rounds] == [SEEN, SEEN.replace("1", "2"), None]
    assert [one.observation for one in acted(replies()).rounds] == [SEEN, SEEN.replace("1", "2"), ""]
    assert acted([replies()[0]], world=EmbeddedWorld(Mute()), max_turns=2).rounds[0].observation == NEUTRAL


def test_an_observation_with_a_long_gap_is_shown_at_once() -> None:
    gap = "\n " * 200_000  # in cubic time longer than any test's limit
    episode = acted(replies(), world=EmbeddedWorld(Gap(gap)), max_turns=1)
    assert episode.rounds[0].observation == f"A wall.{gap}And a door. Action: sing"


class Gap(Stairs):
    """Its observations have white space in the middle, and more before a line that looks like a round's."""

    def __init__(self, gap: str) -> None:
        self.gap = gap

    def act(self, action: str) -> tuple[str, float, bool]:
        return f"A wall.{self.gap}And a door.{self.gap}Action: sing", 0.0, False


class Mute(Stairs):
    def act(self, action: str) -> tuple[str, float, bool]:
        return " \n", 0.0, False


def test_an_episode_cut_at_max_turns_keeps_its_reward_so_far() -> None:
    episode = acted(replies(), max_turns=2)
    assert (episode.reward, episode.em, episode.f1, episode.finished) == (2 / 3, False, 2 / 3, False)
    assert (len(episode.rounds), episode.messages[-1].role, episode.messages[-1].finish) == (2, "assistant", "length")
    assert acted(replies(), evaluate=False).reward is None


def test_an_action_that_the_environment_does_not_understand_is_invalid_and_play_continues() -> None:
    episode = acted([" So.\nAction: dance[well]", *replies()[1:]], max_turns=4)
    assert [(one.tool, one.argument) for one in episode.rounds] == [(None, ""), ("up", ""), ("up", ""), ("up", "")]
    assert episode.rounds[0].observation == "Nothing happens."
    metrics = evaluate_metrics([episode])
    assert metrics["invalid"]["mean"] == 0.25
    assert metrics["actions"] == {"": 1, "up": 3}


def test_a_round_without_an_action_ends_the_episode_as_failed() -> None:
    episode = acted([replies()[0], " I wonder."], retries=2)
    assert [one.failed for one in episode.rounds] == [False, True]
    assert (episode.rounds[-1].attempts, episode.finished, episode.reward) == (3, False, 1 / 3)
    assert text_of(episode.messages).endswith("Thought: I wonder.")


def test_a_trajectory_ends_with_the_reward_line_that_training_rows_omit() -> None:
    text = trajectory(acted(replies()))
    assert text.endswith("Action: up\nObservation: Episode finished, reward = True\n")
    assert alpaca_row(text, "self_play")["output"].endswith("Action: up")
    failed = trajectory(acted([replies()[0], " I wonder."]))
    assert failed.endswith("Thought: failed\nAction: \nObservation: Episode finished, reward = False\n")


class Errands(Stairs):
    actions = ("finish tea", "look")


def test_an_action_called_finish_does_not_finish_the_trajectory() -> None:
    text = trajectory(acted([" Tea.\nAction: finish tea"], world=EmbeddedWorld(Errands()), max_turns=2))
    assert text.endswith("Action: finish tea\nObservation: You are at 0.\n|_| Action: sing\n")


class Failing(EmbeddedWorld):
    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        raise EnvError("the server is gone")


def test_an_environment_failure_blocks_the_episode() -> None:
    episode = acted(replies(), world=Failing(ENV))
    assert (episode.status, episode.error, episode.rounds) == ("blocked", "the server is gone", [])


def test_an_environment_need_not_say_whether_an_action_is_valid() -> None:
    class Reticent(Stairs):
        def step(self, action: str) -> Step:
            return super().step(action)._replace(info={})

    episode = acted(replies(), world=EmbeddedWorld(Reticent()))
    assert (episode.status, episode.rounds[0].tool) == ("solved", "up")


def test_every_training_task_has_an_expert_and_one_that_fails_is_refused() -> None:
    tasks = TasksParams(train=4, dev=1, test=2)
    made = gather_acted(tasks, ENV, seed=3)
    assert [len(made.splits[name]) for name in ("train", "dev", "test")] == [4, 1, 2]
    assert [expert.question for expert in made.experts] == made.splits["train"]
    assert made.splits["train"][0].question.startswith("Climb.\n\nStairs ")
    with pytest.raises(UserError, match=r"cellar-\d: the expert ends with reward 0 instead of 1"):
        gather_acted(tasks, Cellar(), seed=3)
    with pytest.raises(UserError, match=r"ladder-\d: the expert ends with reward 0 instead of 1"):
        gather_acted(tasks, Ladder(), seed=3)
    with pytest.raises(UserError, match=r"spin\.tasks\.train: 40 tasks of stairs are requested, but 6 of 9 are left"):
        gather_acted(TasksParams(train=40, dev=1, test=2), ENV, seed=3)


def test_spin_and_rise_have_the_same_test_split() -> None:
    env = text_env(name="textcraft").make()
    plans: Any = answer_env(name="textcraft").make()
    mine = gather_acted(TasksParams(train=3, dev=2, test=5), env, seed=17).splits["test"]
    its = plans.problems({"demonstrations": 9, "train": 1, "dev": 2, "test": 5}, seed=17)["test"]
    assert [one.id for one in mine] == [one.id for one in its]


def test_replies_to_problems_are_graded_and_the_experts_replies_are_right() -> None:
    env = answer_env(name="gsm8k").make()
    made = gather_answers(TasksParams(train=4, dev=1, test=2), env, seed=3, download=Path("unused"), mirror=None)
    score = scorer(env)
    for expert in made.experts:
        marks = score(expert.rounds[0].thought, expert.question)
        assert (marks.reward, marks.em, marks.f1) == (1.0, True, 1.0)
        assert score("no idea", expert.question).reward == 0
        assert score(r"\boxed{-5}", expert.question).em is False
