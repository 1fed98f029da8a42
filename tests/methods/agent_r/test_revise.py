"""Splices, revision turns, loss flags, direct revision, replayed splices (docs/agent-r.md, A21 to A24)."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.records import Message
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.reply import parse_action
from selfimprove.methods.agent_r.revise import (
    REVISION_THOUGHTS,
    branch_point,
    choose_thought,
    revision_reply,
    splice,
    spliced_actions,
    whole,
)
from selfimprove.methods.agent_r.tree import Node, Tree
from selfimprove.methods.agent_r.validate import replay
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.trees import PROMPT, by_hand, leaf_of

TREE = by_hand({"abxyz": 0.0, "abcd": 1.0, "k": 0.5}, ids=True)
GOOD = TREE.path(leaf_of(TREE, "abcd"))
BAD = TREE.path(leaf_of(TREE, "abxyz"))


def shown(messages: list[Message]) -> str:
    """The dialogue after the opening as letters: capitals for replies trained on, ``!`` for the revision turn."""
    text = ""
    for message in messages[len(PROMPT) :]:
        if message.role == "assistant":
            letter = "!" if message.content.endswith("Action: wait") else message.content[-1]
            text += letter.upper() if message.weight == 1 else letter
            assert message.weight in (0, 1)
            assert message.weight or letter != "!"
    return text


def test_a_splice_is_the_initial_and_bad_steps_a_revision_turn_and_the_remaining_good_steps() -> None:
    assert shown(splice(TREE, GOOD, BAD[:3], "I erred.")) == "abx!CD"
    assert shown(splice(TREE, GOOD, BAD[:4], "I erred.")) == "abxy!CD"


def test_direct_revision_comes_after_the_whole_bad_path() -> None:
    assert shown(splice(TREE, GOOD, BAD, "I erred.")) == "abxyz!CD"


def test_paths_that_diverge_at_the_root_share_no_step() -> None:
    other = TREE.path(leaf_of(TREE, "k"))
    assert branch_point(GOOD, other) == 0
    assert branch_point(GOOD, BAD) == branch_point(BAD, GOOD) == 2
    assert shown(splice(TREE, GOOD, other, "I erred.")) == "k!ABCD"


def test_each_observation_follows_its_own_action() -> None:
    messages = splice(TREE, GOOD, BAD[:3], "I erred.")
    assert messages[:4] == PROMPT
    assert [m.role for m in messages[4:]] == ["assistant", "user"] * 6
    assert [m.content for m in messages[5::2]] == ["saw a", "saw ab", "saw abx", "ok.", "saw abc", "saw abcd"]


def test_the_revision_turn_is_a_thought_and_wait_and_is_answered_with_ok() -> None:
    reply, answered = splice(TREE, GOOD, BAD[:3], "I erred.")[10:12]
    assert reply.content == revision_reply("I erred.") == "Thought: I erred.\nAction: wait"
    assert (answered.role, answered.content) == ("user", "ok.")


def test_there_are_ten_short_revision_thoughts_in_the_first_person() -> None:
    assert len(set(REVISION_THOUGHTS)) == len(REVISION_THOUGHTS) == 10
    for thought in REVISION_THOUGHTS:
        assert re.search(r"\b(I|my|me)\b", thought, re.IGNORECASE)
        assert len(thought) < 80
        assert thought.endswith(".")
        assert "\n" not in thought
        assert "Action" not in thought


def test_every_thought_is_used_and_no_two_trees_share_a_sequence() -> None:
    sequences = [tuple(choose_thought(0, f"tree-{t}", pair) for pair in range(12)) for t in range(40)]
    counts = Counter(thought for sequence in sequences for thought in sequence)
    assert set(counts) == set(REVISION_THOUGHTS)  # the original reaches ten of its twenty
    assert min(counts.values()) > 20
    assert len(set(sequences)) == 40  # the original: one for all trees with as many pairs
    assert choose_thought(0, "tree-1", 3) == choose_thought(0, "tree-1", 3)
    assert [choose_thought(seed, "t", 1) for seed in range(30)] != [choose_thought(0, "t", 1)] * 30


def test_only_the_revision_turn_and_the_replies_after_it_are_trained_on() -> None:
    messages = splice(TREE, GOOD, BAD[:3], "I erred.")
    learnt = [i for i, m in enumerate(messages) if m.weight]
    assert learnt == [10, 12, 14]
    assert all(messages[i].weight == 1 and messages[i].role == "assistant" for i in learnt)
    assert messages[2].content == "Ok."  # the canned root reply
    assert messages[2].weight == 0


def test_every_reply_of_the_agent_in_a_good_trajectory_is_trained_on() -> None:
    messages = whole(TREE, GOOD)
    assert shown(messages) == "ABCD"
    assert [m.weight for m in messages[:4]] == [0] * 4
    assert all(m.weight == 0 for m in messages if m.role == "user")


def test_steps_before_the_root_are_context_whatever_their_weights_in_the_tree() -> None:
    tree = by_hand({"a": 1.0})
    tree.prompt = [
        *(m.model_copy(update={"weight": 1.0}) for m in PROMPT),
        Message(role="assistant", content="Thought: t\nAction: z", weight=1.0),
        Message(role="user", content="saw z"),
    ]
    assert shown(whole(tree, [1])) == "zA"
    assert shown(splice(tree, [1], [], "I erred.")) == "z!A"


def test_replies_keep_their_generated_token_ids() -> None:
    messages = splice(TREE, GOOD, BAD[:3], "I erred.")
    assert [m.token_ids for m in messages[4::2]] == [[97], [98], [120], None, [99], [100]]


@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5), st.data())
def test_any_splice_contains_the_requested_bad_steps_and_the_remaining_good_steps(
    shared: int, good: int, bad: int, data: Any
) -> None:
    stem = "sssss"[:shared]
    tree = by_hand({stem + "ggggg"[:good]: 1.0, stem + "bbbbb"[:bad]: 0.0})
    good_path = tree.path(leaf_of(tree, stem + "ggggg"[:good]))
    bad_path = tree.path(leaf_of(tree, stem + "bbbbb"[:bad]))
    stop = data.draw(st.integers(shared + 1, shared + bad))
    spliced = splice(tree, good_path, bad_path[:stop], "I erred.")
    assert shown(spliced) == (stem + "bbbbb")[:stop] + "!" + "GGGGG"[:good]
    actions = [parse_action(reply.content) for reply in spliced[len(PROMPT) :: 2]]
    assert spliced_actions(tree, good_path, bad_path[:stop]) == actions  # what a replay executes


def corridor_tree(task_id: int, good: list[str], bad: list[str]) -> tuple[Tree, list[int], list[int]]:
    """A tree of two paths in the corridor, as search would build it, and the two paths."""
    env = Corridor()
    nodes = [Node()]
    paths = []
    prompt = opening(env.instruction, env.reset(task_id))
    for actions in (good, bad):
        env.reset(task_id)
        at, path = 0, []
        for action in actions:
            step = env.step(action)
            same = [i for i in nodes[at].children if nodes[i].action == action]
            if not same:
                node = Node(
                    parent=at, reply=f"Thought: t\nAction: {action}", action=action, token_ids=[len(nodes)],
                    observation=step.observation.replace("\n", " ").replace("\t", " "), reward=step.reward,
                )  # fmt: skip
                nodes[at].children.append(len(nodes))
                same = [len(nodes)]
                nodes.append(node)
            at = same[0]
            path.append(at)
        paths.append(path)
    tree = Tree(id="corridor", env="corridor", task_id=task_id, prompt=prompt, nodes=nodes, seed="0")
    return tree, paths[0], paths[1]


def lived(task_id: int, good: list[str], bad: list[str], alpha: float = 0.9) -> list[Message] | None:
    tree, good_path, bad_path = corridor_tree(task_id, good, bad)
    trajectory = splice(tree, good_path, bad_path, "I erred.")
    return asyncio.run(replay(tree, trajectory, EmbeddedWorld(Corridor()), lambda score: score > alpha))


KEY_1_DOOR_1 = 6


def test_a_replayed_splice_that_still_succeeds_is_kept_with_fresh_observations() -> None:
    kept = lived(KEY_1_DOOR_1, ["right", "take key", "open door"], ["look"])  # "look" moves left: room 0
    assert kept is not None
    assert [m.content for m in kept[5::2]] == [
        "You are in room 0 of 5.", "ok.", "You are in room 1 of 5.", "You have the key.", "You have opened the door."
    ]  # fmt: skip
    assert [m.weight for m in kept[4::2]] == [0, 1, 1, 1, 1]
    assert [m.token_ids for m in kept[4::2]] == [[4], None, [1], [2], [3]]


def test_a_replayed_splice_that_no_longer_succeeds_is_dropped() -> None:
    # After two steps to the right, the good steps do not reach the key.
    assert lived(KEY_1_DOOR_1, ["right", "take key", "open door"], ["right", "right"]) is None
    # With the key alone it scores 0.5.
    actions = ["right", "take key", "left", "open door"]
    assert lived(KEY_1_DOOR_1, actions, ["look"], alpha=0.4) is not None
    assert lived(KEY_1_DOOR_1, actions, ["look"], alpha=0.5) is None


def test_a_splice_whose_bad_steps_end_the_episode_is_dropped() -> None:
    assert lived(KEY_1_DOOR_1, ["right", "take key", "open door"], ["jump"], alpha=-1) is None
    assert lived(0, ["take key", "open door"], ["left", "take key", "open door"], alpha=0.1) is None


def test_a_replayed_splice_needs_a_reply_after_the_revision_turn_and_one_is_enough() -> None:
    tree, good, bad = corridor_tree(0, ["take key", "open door"], ["take key", "look"])
    trajectory, world = splice(tree, good, bad, "I erred."), EmbeddedWorld(Corridor())
    kept = asyncio.run(replay(tree, trajectory, world, lambda score: score > 0.9))
    assert kept is not None
    assert [m.weight for m in kept[4::2]] == [0, 0, 1, 1]
    assert asyncio.run(replay(tree, trajectory[:-2], world, lambda score: score > 0)) is None


def test_if_the_episode_ends_among_the_good_steps_the_sample_ends_there() -> None:
    # The bad steps already take the key, so the second of the good steps opens the door.
    kept = lived(0, ["left", "open door", "take key", "open door"], ["take key"])
    assert kept is not None
    assert [m.content[m.content.index("Action") :] for m in kept[4::2]] == [
        "Action: take key", "Action: wait", "Action: left", "Action: open door"
    ]  # fmt: skip
    assert kept[-1].content == "You have opened the door."


def test_a_replay_first_executes_the_steps_given_before_the_root() -> None:
    tree, good, bad = corridor_tree(KEY_1_DOOR_1, ["take key", "open door"], ["hm"])
    tree.prompt = [
        *tree.prompt, Message(role="assistant", content="Thought: t\nAction: right"), Message(role="user", content="?")
    ]  # fmt: skip
    trajectory = splice(tree, good, bad, "I erred.")
    world = EmbeddedWorld(Corridor())
    assert asyncio.run(replay(tree, trajectory, world, lambda score: score > 0.9)) is None  # "hm" moves to another room
    tree, good, bad = corridor_tree(KEY_1_DOOR_1, ["take key", "open door"], ["open door"])
    for action in ("right", "left", "right"):
        tree.prompt = [
            *tree.prompt, Message(role="assistant", content=f"Action: {action}"), Message(role="user", content="?")
        ]  # fmt: skip
    kept = asyncio.run(replay(tree, splice(tree, good, bad, "I erred."), world, lambda score: score > 0.9))
    assert kept is not None
    assert [m.content for m in kept[5:11:2]] == [f"You are in room {room} of 5." for room in (1, 0, 1)]
    assert [m.weight for m in kept[4::2]] == [0, 0, 0, 0, 1, 1, 1]
