"""The judge's prompt and answer, the transition point, and scripted verdicts (docs/agent-r.md, A17 to A20)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.records import Message
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.recipes import RecipeBook
from selfimprove.methods.agent_r.judge import (
    ActorJudge,
    ScriptedJudge,
    Standing,
    judge_examples,
    step_verdict,
    transition_point,
)
from selfimprove.methods.agent_r.judge_prompt import (
    VERDICTS,
    Judgement,
    parse_verdict,
)
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.tree import Node, Tree
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.trees import by_hand, leaf_of

CRAFT = TextCraft(RecipeBook.load(None))


class Fitting(ScriptedEngine):
    """An engine whose context holds ``room`` characters. It records its requests."""

    def __init__(self, reply: str, room: int) -> None:
        self.asked: list = []
        super().__init__(lambda request, _: self.asked.append(request) or reply)  # type: ignore[func-returns-value]
        self.room = room

    def fits(self, messages: Any, max_tokens: Any) -> bool:
        return sum(len(m.content) for m in messages) + max_tokens <= self.room


def ask(engine: Fitting, tree: Tree, index: Any, **params: Any) -> Judgement:
    return asyncio.run(ActorJudge(engine, ConvertParams(**params), 5)(tree, index))


def test_the_actor_judges_a_node_with_all_earlier_steps_in_the_prompt() -> None:
    tree = by_hand({"abcd": 0.0, "x": 1.0})
    engine = Fitting("So.\nJudgement: Bad", 10**6)
    assert ask(engine, tree, leaf_of(tree, "abc"), judge_max_tokens=77, judge_temperature=0.3).verdict == "bad"
    (request,) = engine.asked
    prompt = request.messages[0].content
    assert "You stand at a fork." in prompt
    assert "Action: a\nObservation: saw a\nAction: b\nObservation: saw ab\n\nCurrent action: c" in prompt
    assert "saw abcd" not in prompt
    assert (request.max_tokens, request.temperature, request.n) == (77, 0.3, 1)


def test_steps_given_before_the_root_are_part_of_the_log() -> None:
    tree = by_hand({"a": 0.0})
    for action, seen in (("look", "A wall."), ("turn", "A door.")):
        tree.prompt += [
            Message(role="assistant", content=f"Thought: x\nAction: {action}"), Message(role="user", content=seen)
        ]  # fmt: skip
    engine = Fitting("Judgement: Good", 10**6)
    ask(engine, tree, 1)
    log = "Action: look\nObservation: A wall.\nAction: turn\nObservation: A door.\n\nCurrent action: a"
    assert log in engine.asked[0].messages[0].content


def test_a_log_that_is_too_long_loses_its_oldest_steps_whole() -> None:
    tree = by_hand({"abcdefgh": 0.0})
    last = leaf_of(tree, "abcdefgh")
    engine = Fitting("Judgement: Good", 10**6)
    ask(engine, tree, last)
    whole = len(engine.asked[0].messages[0].content)
    engine = Fitting("Judgement: Good", whole + 300)
    assert ask(engine, tree, last).omitted == 0
    assert "left out" not in engine.asked[0].messages[0].content
    engine = Fitting("Judgement: Good", whole + 300 - 20)
    heard = ask(engine, tree, last)
    prompt = engine.asked[0].messages[0].content
    assert len(prompt) + 300 <= engine.room
    dropped = int(prompt.partition("Log so far:\n(")[2].partition(" ")[0])
    assert heard.omitted == dropped > 0
    kept = "abcdefg"[dropped:]
    assert [line for line in prompt.splitlines() if line.startswith("Action: ") and len(line) == 9] == [
        f"Action: {letter}" for letter in kept
    ]
    assert "You stand at a fork." in prompt
    engine = Fitting("Judgement: Good", 10)  # nothing fits: the prompt still has the task and the step
    ask(engine, tree, last)
    assert "(7 earlier steps are left out)" in engine.asked[0].messages[0].content


def test_the_seed_of_a_judgement_depends_on_tree_and_node() -> None:
    tree = by_hand({"ab": 0.0, "ac": 1.0})
    twin = tree.model_copy(update={"id": "corridor-2", "seed": "0/corridor-2"})
    engine = Fitting("Judgement: Good", 10**6)
    for one, index in ((tree, 1), (tree, 2), (tree, 3), (twin, 1)):
        ask(engine, one, index)
    assert len({request.seed for request in engine.asked}) == 4


def walk(verdicts: Any, branch: int) -> tuple[str, list[str], bool]:
    """The kept path (as letters of its verdicts), the verdicts requested, and whether a bad step was found."""
    names = {"g": "good", "b": "bad", "u": "uncertain"}

    async def judge(index: Any) -> Judgement:
        return Judgement(verdict=names[verdicts[index]], text="")  # type: ignore[arg-type]

    done = asyncio.run(transition_point(range(len(verdicts)), branch, judge))
    return "".join(verdicts[i] for i in done.path), [j.verdict for j in done.judgements], done.found


def test_the_walk_stops_after_the_first_bad_step_and_keeps_it() -> None:
    assert walk("gugb" + "gb", 0) == ("gugb", ["good", "uncertain", "good", "bad"], True)
    assert walk("b", 0) == ("b", ["bad"], True)


def test_without_a_bad_verdict_the_whole_path_is_kept() -> None:
    assert walk("guug", 0) == ("guug", ["good", "uncertain", "uncertain", "good"], False)
    assert walk("", 0) == ("", [], False)


def test_a_verdict_before_the_branch_cannot_end_the_walk() -> None:
    assert walk("bbgbg", 2) == ("bbgb", ["bad", "bad", "good", "bad"], True)
    assert walk("bbgug", 2) == ("bbgug", ["bad", "bad", "good", "uncertain", "good"], False)
    assert walk("gbb", 1) == ("gb", ["good", "bad"], True)


@given(st.text("gbu", max_size=12), st.integers(0, 12))
def test_the_kept_path_ends_with_the_first_bad_step_at_or_after_the_branch(verdicts: str, branch: int) -> None:
    kept, asked, found = walk(verdicts, branch)
    at = verdicts.find("b", branch)
    assert kept == (verdicts if at < 0 else verdicts[: at + 1])
    assert found == (at >= 0)
    assert len(asked) == len(kept)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (5, 4, "good"), (5, 5, "uncertain"), (5, 7, "bad"), (5, None, "bad"), (None, 5, "good"),
        (None, None, "uncertain"),  # off ScienceWorld's gold path: only the step that leaves it is bad
    ],
)  # fmt: skip
def test_a_step_is_judged_by_the_actions_left_before_and_after_it(before: Any, after: Any, verdict: str) -> None:
    assert step_verdict(Standing(0, before, False), Standing(0, after, False)) == verdict
    assert step_verdict(Standing(0, before, False), Standing(0, after, False, reward=0.1)) == "good"
    assert step_verdict(Standing(0, before, False), Standing(0, None, True)) == "bad"  # a failed episode


def played(env: Any, task_id: int, *actions: str) -> Tree:
    """A tree of a single path."""
    observation = env.reset(task_id)
    nodes = [Node()]
    for depth, action in enumerate(actions, start=1):
        nodes[-1].children = [depth]
        nodes.append(Node(parent=depth - 1, reply=f"Thought: t\nAction: {action}", action=action, depth=depth))
    return Tree(
        id=f"{env.name}-{task_id}", env=env.name, task_id=task_id, prompt=opening(env.instruction, observation),
        nodes=nodes, seed="0",
    )  # fmt: skip


def verdicts_of(env: Any, tree: Tree) -> list[str]:
    judge = ScriptedJudge({env.name: env})
    return [asyncio.run(judge(tree, i)).verdict for i in range(1, len(tree.nodes))]


def test_the_scripted_verdict_follows_the_length_of_the_expert_s_plan() -> None:
    env = Corridor()
    key_in_2_door_in_1 = 11
    tree = played(
        env, key_in_2_door_in_1, "right", "left", "wait", "take key", "right", "right", "hm", "left", "take key"
    )
    assert verdicts_of(env, tree) == [
        "good", "bad", "uncertain", "bad",  # closer; further away; nothing changed; refused
        "good", "good", "bad",  # "hm" is invalid (and moves left)
        "bad", "bad",  # even further away; there is no key here
    ]  # fmt: skip
    assert verdicts_of(env, played(env, 0, "take key", "open door")) == ["good", "good"]  # reaches the goal
    assert verdicts_of(env, played(env, 0, "jump", "right")) == ["bad", "bad"]  # fatal; the episode is over


def test_the_scripted_judge_first_takes_the_steps_given_before_the_root() -> None:
    env = Corridor()
    tree = played(env, 11, "take key")  # the key is in room 2
    assert verdicts_of(env, tree) == ["bad"]
    for _ in range(2):
        tree.prompt += [
            Message(role="assistant", content="Thought: t\nAction: right"), Message(role="user", content="Walls.")
        ]  # fmt: skip
    assert verdicts_of(env, tree) == ["good"]


def test_the_scripted_judge_can_judge_many_trees_in_any_order() -> None:
    env = Corridor()
    trees = [played(env, task, "right", "left", "take key") for task in (11, 0, 13)]
    judge = ScriptedJudge({env.name: env}, keep=2)
    asked = [(0, 3), (1, 1), (2, 2), (0, 1), (1, 3), (0, 2), (2, 3), (1, 2), (2, 1)]
    heard = {(t, i): asyncio.run(judge(trees[t], i)).verdict for t, i in asked}
    for t, tree in enumerate(trees):
        assert [heard[t, i] for i in (1, 2, 3)] == verdicts_of(env, tree)
    assert len(judge._known) == 2  # at most ``keep`` trees are cached


def test_in_textcraft_the_expert_s_actions_are_good_and_refused_or_wasteful_ones_are_bad() -> None:
    marble_stair = 867
    CRAFT.reset(marble_stair)
    plan = [move.action for move in CRAFT.expert()]
    assert plan[0] == "get 4 marble rock"
    assert verdicts_of(CRAFT, played(CRAFT, marble_stair, *plan)) == ["good"] * len(plan)
    refused = played(CRAFT, marble_stair, "inventory", "dance", plan[-1])
    assert verdicts_of(CRAFT, refused) == ["uncertain", "bad", "bad"]
    wasteful = played(CRAFT, marble_stair, plan[0], "get 1 clay", "craft 1 marble bowl using 3 marble rock")
    assert verdicts_of(CRAFT, wasteful) == ["good", "uncertain", "bad"]  # the rock must be got again


def test_judge_examples_have_the_judge_s_prompt_and_an_answer_in_its_form() -> None:
    made = judge_examples(CRAFT, CRAFT.task_ids()[:40], 90, seed=2)
    assert len(made) == 90
    assert Counter(parse_verdict(one.messages[1].content) for one in made) == dict.fromkeys(VERDICTS, 30)
    for one in made:
        prompt, reply = one.messages
        assert (prompt.role, prompt.weight, reply.role, reply.weight) == ("user", 0.0, "assistant", 1.0)
        assert prompt.content.startswith("Judge the last crafting step.\nGoal: craft ")
        assert reply.content.count("\n") == 1
    assert [one.id for one in made] == [f"judgement_{i}" for i in range(90)]
    assert {one.source for one in made} <= {f"textcraft-{task}" for task in CRAFT.task_ids()[:40]}
    assert len({(one.messages[0].content, one.messages[1].content) for one in made}) == 90
    first = [parse_verdict(one.messages[1].content) for one in made[:30]]
    assert len(set(first)) == 3  # shuffled


def test_judge_examples_of_given_tasks_depend_on_seed_and_style_only() -> None:
    tasks = CRAFT.task_ids()[:20]
    made = judge_examples(CRAFT, tasks, 30, seed=2)
    used = TextCraft(RecipeBook.load(None))
    used.reset(30)
    used.step(used.expert()[0].action)
    assert judge_examples(used, tasks, 30, seed=2) == made  # whatever the environment did before
    assert judge_examples(used, tasks, 30, seed=2) == made
    assert judge_examples(CRAFT, tasks, 30, seed=3) != made
    full = judge_examples(CRAFT, tasks, 30, seed=2, style="full")
    assert all("First give your reasons" in one.messages[0].content for one in full)
    assert not any("First give your reasons" in one.messages[0].content for one in made)


def test_no_more_judge_examples_are_made_than_requested_or_than_the_tasks_give() -> None:
    assert judge_examples(CRAFT, CRAFT.task_ids()[:20], 0, seed=2) == []
    assert judge_examples(CRAFT, [], 9, seed=2) == []
    made = judge_examples(CRAFT, CRAFT.task_ids()[:20], 11, seed=2)  # the verdicts' numbers differ by at most one
    assert sorted(Counter(parse_verdict(one.messages[1].content) for one in made).values()) == [3, 4, 4]
    assert 2 * len(judge_examples(Corridor(), [0], 900, seed=2)) < 900  # a tiny environment yields fewer examples
