"""Tree search: statistics, expansion and failures (docs/agent-r.md, A7 to A11)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import dump_line
from selfimprove.interop.agent_r import to_json
from selfimprove.methods.agent_r.metrics import search_metrics
from selfimprove.methods.agent_r.reply import parse_action
from selfimprove.methods.agent_r.search import backup, best_children, uct
from selfimprove.methods.agent_r.tree import Node, Tree
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.searching import FAR, NEAR, Failing, Raw, Script, grow, params, said, scripted
from tests.methods.agent_r.trees import PROMPT


def descendants(tree: Any, index: Any) -> Iterator[Any]:
    for child in tree.nodes[index].children:
        yield child
        yield from descendants(tree, child)


def test_omitted_messages_and_cut_completions_are_counted_at_every_node() -> None:
    actor = scripted("right", "left", "look")
    whole = grow(FAR, actor)
    assert search_metrics([whole])["shortened_prompts"]["mean"] == 0
    actor.fits = lambda messages, max_tokens: len(messages) <= 4 + 2 * 2  # type: ignore[method-assign]
    tree = grow(FAR, actor)
    assert [node.omitted for node in tree.nodes] == [max(0, 2 * (node.depth - 1) - 4) for node in tree.nodes]
    short = sum(node.depth > 3 for node in tree.nodes[1:])
    assert short > 0
    assert search_metrics([tree])["shortened_prompts"]["mean"] == short / (len(tree.nodes) - 1)
    tree.nodes[1].finish = "length"
    assert search_metrics([tree])["cut_completions"]["mean"] == 1 / (len(tree.nodes) - 1)


# --- the statistics ---------------------------------------------------------------------------------------------------


def hand_made(*children: Node) -> Tree:
    nodes = [Node(visits=sum(c.visits for c in children), children=list(range(1, len(children) + 1))), *children]
    return Tree(id="t", env="corridor", task_id=0, prompt=PROMPT, nodes=nodes, seed="0/t")


def test_uct_is_the_mean_reward_plus_the_exploration_bonus() -> None:
    root, child = Node(visits=7, value=2.0), Node(parent=0, visits=3, value=1.5)
    assert uct(child, root, 0.25) == 0.5 + 0.25 * math.sqrt(math.log(7) / 3)
    assert uct(child, root, 0.0) == 0.5
    assert uct(root, None, 0.25) == 2.0 / 7  # no bonus at the root
    assert uct(Node(parent=0), root, 0.25) == 0.0  # unvisited: neither Q nor bonus
    assert uct(Node(parent=0, visits=1, value=1.0), Node(visits=1), 0.25) == 1.0
    assert uct(Node(parent=0, visits=2, value=1.0), Node(), 0.25) == 0.5  # ln 0: no bonus


def test_unvisited_children_come_before_the_best_and_tie_with_each_other() -> None:
    best = Node(parent=0, visits=2, value=2.0)
    assert best_children(hand_made(best, Node(parent=0), Node(parent=0)), 0, 0.25) == [2, 3]
    good, better = Node(parent=0, visits=2, value=1.0), Node(parent=0, visits=3, value=1.6)
    assert best_children(hand_made(good, better), 0, 0.0) == [2]
    assert best_children(hand_made(good, better), 0, 9.0) == [1]  # less visited
    assert best_children(hand_made(good, better, good.model_copy()), 0, 9.0) == [1, 3]


def test_ties_are_broken_uniformly_and_by_the_seed() -> None:
    chosen: Counter[Any] = Counter()
    for seed in range(300):
        tree = grow(FAR, scripted("right", "left", "look"), params(dives=1, max_depth=1), seed=seed)
        chosen[next(i for i in (1, 2, 3) if tree.nodes[i].children)] += 1
    assert all(70 < chosen[i] < 130 for i in (1, 2, 3)), chosen  # 100 expected, deviation 8
    assert grow(FAR, seed=5) == grow(FAR, seed=5)


def test_ties_are_drawn_anew_in_every_dive() -> None:
    """The first dive expands one of the root's children 1, 2 and 3, the second one of the other two."""
    actor, cfg = scripted("right", "left", "look"), params(dives=2, max_depth=1)
    trees = [grow(FAR, actor, cfg, seed=seed) for seed in range(60)]
    assert {(tree.nodes[4].parent, tree.nodes[7].parent) for tree in trees} == set(permutations((1, 2, 3), 2))


def test_terminal_children_are_never_selected_and_exhausted_nodes_become_terminal() -> None:
    ended = Node(parent=0, visits=1, value=1.0, terminal=True)
    assert best_children(hand_made(ended, Node(parent=0, visits=4)), 0, 0.25) == [2]
    assert best_children(hand_made(ended), 0, 0.25) == []
    tree = grow(FAR, scripted("right", "jump", "left"), params(dives=50, max_depth=2))
    assert tree.root.terminal
    assert all(node.terminal for node in tree.nodes)
    assert tree.dives < 50  # every path has ended
    # Three depths; a jump ends at once, so two of three children have children of their own.
    assert Counter(node.depth for node in tree.nodes) == {0: 1, 1: 3, 2: 6, 3: 12}


@given(st.integers(0, 24), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=60)
def test_every_tree_has_consistent_statistics_and_reproducible_nodes(
    task: int, seed: int, dives: int, n_gen: int, max_depth: int
) -> None:
    tree = grow(task, cfg=params(dives=dives, n_gen=n_gen, max_depth=max_depth), seed=seed)
    assert 1 <= tree.dives <= dives
    assert tree.dives == dives or tree.root.terminal
    leaves = set(tree.leaves())
    for index, node in enumerate(tree.nodes):
        below = [i for i in (index, *descendants(tree, index)) if i in leaves]
        assert node.visits == len(below)
        assert node.value == pytest.approx(sum(tree.nodes[i].reward for i in below))
        assert 0 <= node.reward <= 1
        if node.children:
            assert node.terminal == all(tree.nodes[child].terminal for child in node.children)
            assert len({tree.nodes[child].reply for child in node.children}) == len(node.children) <= n_gen
        elif node.parent is not None:
            assert node.terminal == (node.done or node.depth == max_depth + 1)
        for child in node.children:
            assert (tree.nodes[child].parent, tree.nodes[child].depth) == (index, node.depth + 1)
            assert child > index
    # Executing a path from the start reproduces every node on it.
    for index in leaves:
        env = Corridor()
        env.reset(task)
        for i in tree.path(index):
            node = tree.nodes[i]
            if node.action != "wait":
                step = env.step(node.action)
                assert (node.observation, node.reward) == (
                    step.observation.replace("\n", " ").replace("\t", " "),
                    step.reward,
                )


# --- expansion --------------------------------------------------------------------------------------------------------


def test_all_samples_of_a_node_are_drawn_in_one_request() -> None:
    actor = Script()
    tree = grow(FAR, actor, params(n_gen=5, temperature=0.7, top_p=0.9, max_tokens=50, stop=["\n\n"]))
    expanded = [node for node in tree.nodes if node.children]
    assert len(actor.asked) == len(expanded) > 3
    assert {request.n for request in actor.asked} == {5}
    first = actor.asked[0]
    assert (first.temperature, first.top_p, first.max_tokens, list(first.stop)) == (0.7, 0.9, 50, ["\n\n"])
    assert len({str(request.seed) for request in actor.asked}) == len(actor.asked)


def test_each_request_contains_the_conversation_of_its_node() -> None:
    actor = Script()
    tree = grow(FAR, actor, params(dives=4))
    conversations = {
        tuple((m.role, m.content) for m in tree.conversation(i)) for i, node in enumerate(tree.nodes) if node.children
    }
    assert {tuple((m.role, m.content) for m in request.messages) for request in actor.asked} == conversations


def test_of_replies_with_the_same_text_only_the_first_becomes_a_child() -> None:
    samples = [said("right"), "Thought 1: So be it.\nAction 1: right  ", said("left"), said("right")]
    actor = Script(lambda request, index: samples[index])
    tree = grow(FAR, actor, params(n_gen=4, dives=1, max_depth=1))
    assert [tree.nodes[i].action for i in tree.root.children] == ["right", "left"]
    assert tree.duplicates == 2 * sum(bool(node.children) for node in tree.nodes)
    other = Script(lambda request, index: ["Thought: a\nAction: right", "Thought: b\nAction: right"][index])
    assert len(grow(FAR, other, params(n_gen=2)).root.children) == 2  # different texts with the same action


def test_replies_that_only_lose_a_marker_s_number_keep_their_own_actions() -> None:
    samples = ["Action 1: right\nAction: left", "Action: right\nAction: left"]
    tree = grow(FAR, Script(lambda request, index: samples[index]), params(n_gen=2, dives=1, max_depth=1))
    children = [tree.nodes[i] for i in tree.root.children]
    assert [node.action for node in children] == ["right", "left"]
    assert [parse_action(node.reply) for node in children] == ["right", "left"]


def test_terminal_children_are_backed_up_immediately() -> None:
    tree = grow(NEAR, scripted("take key", "jump", "open door"), params(dives=1, max_depth=9))
    # In the dive, the root's jump ends at once, then that of the child chosen next; each is backed up to the root.
    jumps = [node for node in tree.nodes if node.disaster]
    assert len(jumps) >= 2
    assert tree.root.visits == len(tree.leaves()) >= len(jumps)


def test_backup_reaches_the_root_and_marks_exhausted_nodes_as_terminal() -> None:
    nodes = [
        Node(children=[1, 2]),
        Node(parent=0, children=[3]),
        Node(parent=0),
        Node(parent=1, reward=0.5, terminal=True),
    ]
    tree = Tree(id="t", env="e", task_id=0, prompt=PROMPT, nodes=nodes, seed="s")
    backup(tree, 3)
    assert [(n.visits, n.value, n.terminal) for n in nodes] == [
        (1, 0.5, False),
        (1, 0.5, True),
        (0, 0.0, False),
        (1, 0.5, True),
    ]


def test_the_depth_bound_allows_one_more_action_and_keeps_the_score() -> None:
    tree = grow(FAR, scripted("right", "take key", "left"), params(max_depth=3, dives=30))
    deepest = [node for node in tree.nodes if node.depth == 4]
    assert max(node.depth for node in tree.nodes) == 4
    assert deepest
    assert all(node.terminal and not node.done for node in deepest)
    assert {node.reward for node in deepest} == {0.0, 0.5}  # with the key: 0.5, though the episode was cut
    assert not any(node.terminal for node in tree.nodes if node.depth == 3 and not node.children)


def test_a_depth_bound_of_zero_allows_one_action() -> None:
    tree = grow(FAR, scripted("right", "take key", "left"), params(max_depth=0, dives=30))
    assert [node.depth for node in tree.nodes] == [0, 1, 1, 1]
    assert all(node.terminal for node in tree.nodes)
    assert tree.dives == 1


def test_a_disaster_scores_zero_and_ends_the_episode() -> None:
    tree = grow(NEAR, scripted("take key", "jump", "left"), params(dives=2))
    fallen = [node for node in tree.nodes if node.action == "jump"]
    assert fallen
    assert all(node.disaster and node.terminal and node.done and node.reward == 0 for node in fallen)
    assert not any(node.disaster for node in tree.nodes if node.action != "jump")


def test_a_negative_raw_score_is_a_disaster_and_clamped_to_zero() -> None:
    tree = grow(NEAR, scripted("take key", "jump", "left"), params(dives=2), env=Raw())
    assert any(node.disaster for node in tree.nodes)
    assert all(node.terminal and node.reward == 0 for node in tree.nodes if node.action == "jump")


def test_embedded_worlds_step_from_snapshots_and_never_replay() -> None:
    env = Corridor()
    tree = grow(FAR, scripted("right", "take key", "look"), params(dives=5), env=env)
    assert (env.resets, env.steps) == (1, len(tree.nodes) - 1)


def test_a_search_with_prior_replies_continues_from_them() -> None:
    given_replies = [said("right"), "Thought 1: The key.\nAction 1: take key"]
    actor = Script()
    tree = grow(FAR, actor, prior=given_replies)
    assert [m.content for m in tree.prompt[4:]] == [
        said("right"), "You are in room 1 of 5.", "Thought: The key.\nAction: take key", "You have the key.",
    ]  # fmt: skip
    assert (tree.root.reward, tree.root.depth, tree.root.terminal) == (0.5, 0, False)
    assert list(actor.asked[0].messages) == tree.prompt
    assert all(node.reward >= 0.5 or node.disaster for node in tree.nodes)
    assert tree.id != grow(FAR).id


def test_a_tree_tells_of_its_prior_replies_the_actions_that_were_executed() -> None:
    tree = grow(FAR, prior=["Thought 1: East.\nAction 1: right\nObservation 1: ...\nAction: take key"])
    assert [m.content for m in tree.prompt[4:]] == ["Thought: East.\nAction: right", "You are in room 1 of 5."]
    assert to_json(tree)["recent_actions"] == [["right", "You are in room 1 of 5."]]


def test_prior_replies_that_end_the_episode_leave_nothing_to_search() -> None:
    actor = Script()
    tree = grow(NEAR, actor, prior=[said("take key"), said("open door"), said("left")])
    assert (actor.asked, len(tree.nodes), tree.dives) == ([], 1, 0)
    assert (tree.root.terminal, tree.root.reward, tree.status) == (True, 1.0, "solved")
    assert len(tree.prompt) == 8
    fallen = grow(NEAR, actor, prior=[said("jump")])
    assert (fallen.root.disaster, fallen.root.terminal, fallen.root.reward, fallen.status) == (
        True,
        True,
        0.0,
        "unsolved",
    )


def test_wait_is_answered_without_stepping_the_environment() -> None:
    env = Corridor()
    tree = grow(FAR, scripted("wait"), params(n_gen=1, dives=1, max_depth=2), env=env)
    assert [(n.observation, n.reward, n.valid, n.done) for n in tree.nodes[1:]] == [("ok.", 0.0, True, False)] * 3
    assert env.steps == 0
    kept = grow(NEAR, scripted("wait"), params(n_gen=1, dives=1, max_depth=2), prior=[said("take key")])
    assert {node.reward for node in kept.nodes} == {0.5}


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_engine_blocks_its_tree_and_keeps_complete_expansions() -> None:
    whole = grow(FAR)
    tree = grow(FAR, Script(failing=lambda request: request.seed.turn == 2))
    assert (tree.status, tree.error) == ("blocked", "the endpoint died")
    assert tree.nodes[1].reply == whole.nodes[1].reply
    assert {node.depth for node in tree.nodes} == {0, 1, 2}
    assert len(tree.nodes[0].children) == len(whole.nodes[0].children)


@pytest.mark.parametrize(("at", "nodes"), [(-1, 1), (0, 1), (2, 1), (3, 4), (5, 4), (6, 7)])
def test_a_failing_environment_blocks_its_tree_and_keeps_complete_expansions(at: int, nodes: int) -> None:
    tree = grow(FAR, scripted("right", "left", "look"), env=Failing(at))
    assert (tree.status, len(tree.nodes)) == ("blocked", nodes)
    assert tree.error == ("the server is away" if at < 0 else "the server forgot the episode")
    assert Tree.model_validate_json(dump_line(tree)) == tree


def test_an_unknown_task_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no task 99"):
        grow(99)


@pytest.mark.parametrize("reply", ["", "\n", "\x00\x1b\x07", "x" * 10_000, "Action: left\nAction: right", "Action:"])
def test_every_reply_is_acted_on(reply: str) -> None:
    tree = grow(FAR, Script(lambda request, index: reply), params(n_gen=2, dives=1))
    assert len(tree.nodes) == 6  # one child per node: both samples have the same text
    assert Tree.model_validate_json(dump_line(tree)) == tree


def test_siblings_with_the_same_action_but_other_words_have_their_own_noise() -> None:
    actor = Script(lambda request, index: ["Thought: a\nAction: right", "Thought: b\nAction: right"][index])
    grow(FAR, actor, params(n_gen=2, dives=4, max_depth=1))
    assert len({str(request.seed) for request in actor.asked}) == len(actor.asked) > 2
