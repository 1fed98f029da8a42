"""The scripted judge in rare states: a disaster, points at the start, a walk without an end (docs/agent-r.md, A20)."""

from __future__ import annotations

import asyncio

from selfimprove.envs.interface import Step
from selfimprove.methods.agent_r.judge import LONGEST, ScriptedJudge, judge_examples, judge_step, standing, starting
from selfimprove.methods.agent_r.judge_prompt import Did
from selfimprove.methods.agent_r.tree import Node, Tree
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.trees import PROMPT


class Generous(Corridor):
    """A corridor that gives half of the points at the start, and still shows them after a fall into the pit."""

    begun_with = 0.5

    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(reward=0.9, done=False) if step.info["disaster"] else step


def test_a_step_into_a_disaster_is_bad_and_ends_the_episode_whatever_the_environment_says() -> None:
    env = Generous()
    env.reset(11)
    after, did, judgement = judge_step(env, starting(env), "jump")
    assert (after.over, after.left, after.reward) == (True, None, 0.0)
    assert did.action == "jump"
    assert judgement.verdict == "bad"
    again, _, judgement = judge_step(env, after, "right")
    assert again is after
    assert judgement.verdict == "bad"


def test_points_that_the_reset_gives_are_no_step_s_merit() -> None:
    env = Generous()
    env.reset(16)  # the key is in room 3
    at = starting(env)
    assert at.reward == 0.5
    for _ in range(3):
        at, _, _ = judge_step(env, at, "right")
    _, _, judgement = judge_step(env, at, "take key")
    assert judgement.verdict == "good"  # a shorter way, although the score stays at 0.5
    assert judge_step(env, at, "look")[2].verdict == "bad"


class Endless(Corridor):
    """A corridor whose expert goes to and fro."""

    def expert(self) -> list:
        return super().expert()[:1] * 3

    def step(self, action: str) -> Step:
        return super().step("left" if action in ("take key", "open door", "jump") else action)


def test_a_walk_that_never_ends_is_cut() -> None:
    made = judge_examples(Endless(), [16], 10_000, seed=1, style="full")
    logs = [one.messages[0].content.partition("Log so far:")[2] for one in made]
    assert max(log.count("\nAction: ") for log in logs) == LONGEST - 1  # and the step that is judged


def test_a_walk_ends_with_its_episode() -> None:
    for one in judge_examples(Corridor(), [0, 6], 900, seed=1, style="full"):
        observation = one.messages[0].content.partition("Observation after it: ")[2].partition("\n")[0]
        assert observation not in ("", "It is over.")


class Silent(Corridor):
    """A corridor whose expert knows no way and which lists no actions."""

    def expert(self) -> list:
        return []

    def valid_actions(self) -> None:
        return None


def test_without_a_way_and_without_valid_actions_there_is_nothing_to_judge() -> None:
    assert judge_examples(Silent(), [16], 9, seed=1) == []


class Begun(Corridor):
    """A corridor that gives half of the points at the start and never takes them back."""

    begun_with = 0.5

    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(reward=max(0.5, step.reward))


def test_points_that_the_reset_gives_do_not_make_the_first_step_of_a_tree_good() -> None:
    nodes = [Node(children=[1]), Node(parent=0, action="left", depth=1)]  # against the wall of room 0
    tree = Tree(id="corridor-16", env="corridor", task_id=16, prompt=PROMPT, nodes=nodes, seed="s")
    assert asyncio.run(ScriptedJudge({"corridor": Begun()})(tree, 1)).verdict == "uncertain"


class Forgetful(Corridor):
    """A corridor whose expert knows no way from room 4 and none with the key, as ScienceWorld's off its gold path."""

    def expert(self) -> list:
        return [] if self.state.room == 4 or self.state.key else super().expert()


def test_the_step_to_a_state_without_a_way_is_bad_unless_it_scores_and_those_that_stay_there_are_uncertain() -> None:
    env = Forgetful()
    env.reset(16)  # the key is in room 3
    at, verdicts = starting(env), []
    for action in ("right", "right", "right", "right", "right", "left", "take key", "left"):
        at, _, judgement = judge_step(env, at, action)
        verdicts.append(judgement.verdict)
    assert verdicts == ["good", "good", "good", "bad", "uncertain", "good", "good", "uncertain"]
    env.reset(0)  # the first step scores
    assert judge_step(env, starting(env), "take key")[2].verdict == "good"


def test_the_scripted_verdict_s_reason_says_what_the_step_did_to_the_goal_or_that_it_was_refused() -> None:
    env = Corridor()
    env.reset(16)
    at = starting(env)
    said = {action: judge_step(env, at, action)[2].text for action in ("right", "left", "jump", "look")}
    assert said == {
        "right": "It leaves fewer steps to the goal.\nJudgement: Good",
        "left": "It neither helps nor harms.\nJudgement: Uncertain",  # against the wall
        "jump": "It leads away from the goal.\nJudgement: Bad",
        "look": "The environment refused it.\nJudgement: Bad",
    }


class Terse(Corridor):
    """A corridor whose steps say nothing but the score, and whose door ends the episode even if it stays shut."""

    def step(self, action: str) -> Step:
        return super().step(action)._replace(info={}, done=action == "open door")


def test_a_step_that_says_nothing_about_itself_is_valid_and_no_disaster() -> None:
    env = Terse()
    env.reset(16)
    after, did, judgement = judge_step(env, starting(env), "right")
    assert (after.over, after.left, judgement.verdict) == (False, 6, "good")
    assert did == Did("right", "You are in room 1 of 5.")
    after, _, judgement = judge_step(env, after, "open door")
    assert (after.over, after.left, judgement.verdict) == (True, None, "bad")


def test_wait_is_logged_as_answered_with_ok() -> None:
    env = Corridor()
    env.reset(16)
    assert judge_step(env, starting(env), "wait")[1] == Did("wait", "ok.")


def test_an_episode_that_ends_with_the_full_score_has_no_action_left_and_any_other_end_is_a_failure() -> None:
    assert standing(Corridor(), reward=1.0, over=True).left == 0
    assert standing(Corridor(), reward=0.9, over=True).left is None


class Watched(Corridor):
    """A corridor that records whether each action was the expert's next one."""

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[bool] = []

    def step(self, action: str) -> Step:
        self.followed.append(action == self.expert()[0].action)
        return super().step(action)


def test_walks_of_judge_examples_leave_the_expert_s_path_at_half_of_the_steps() -> None:
    env = Watched()
    judge_examples(env, [13, 16, 19, 23], 900, seed=1)
    # Of the other half, about a quarter repeat the expert's next action by chance.
    assert 0.55 < sum(env.followed) / len(env.followed) < 0.7
