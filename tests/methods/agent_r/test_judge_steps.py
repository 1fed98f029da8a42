"""The scripted judge in rare states: a disaster, points at the start, a walk without an end (docs/agent-r.md, A20)."""

from __future__ import annotations

import asyncio

from selfimprove.envs.interface import Step
from selfimprove.methods.agent_r.judge import LONGEST, ScriptedJudge, judge_examples, judge_step, starting
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
