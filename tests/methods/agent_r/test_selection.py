"""Selection of good trajectories and pairs from a tree's leaves (docs/agent-r.md, A16)."""

from __future__ import annotations

from typing import Any

import pytest

from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.selection import Counts, nothing_kept, ranked_leaves, select, select_all
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.trees import by_hand, grown, leaf_of, letters

PATHS = {"aa": 0.7, "ab": 0.0, "ba": 0.9, "bb": 0.7, "c": 0.5}


def picked(tree: Tree, seed: Any = 0, **params: Any) -> tuple[list[str], list[str]]:
    """Good leaves and pairs, written as letters."""
    selection = select(tree, ConvertParams(**params), seed)
    name = {leaf: letters(tree, tree.path(leaf)) for leaf in ranked_leaves(tree)}
    return [name[i] for i in selection.good], [f"{name[p.good]}>{name[p.bad]}" for p in selection.pairs]


def test_leaves_are_ranked_best_first_and_ties_depth_first() -> None:
    tree = by_hand(PATHS)
    assert [letters(tree, tree.path(leaf)) for leaf in ranked_leaves(tree)] == ["ba", "aa", "bb", "c", "ab"]
    tree = by_hand({"aba": 0.5, "b": 0.5, "abb": 0.5, "aa": 0.5})  # all equal; b was created before abb
    assert [letters(tree, tree.path(leaf)) for leaf in ranked_leaves(tree)] == ["aba", "abb", "aa", "b"]


def test_good_leaves_are_above_alpha_and_pairs_are_more_than_beta_apart() -> None:
    tree = by_hand(PATHS)
    assert picked(tree, alpha=0.5, beta=0.2) == (
        ["ba", "aa", "bb"],
        # 0.9 - 0.7 is 0.20000000000000007 in floating point, and 0.7 - 0.5 is 0.19999999999999996.
        ["ba>aa", "ba>bb", "ba>c", "ba>ab", "aa>ab", "bb>ab"],
    )
    assert picked(tree, alpha=0.7, beta=0.0) == (["ba"], ["ba>aa", "ba>bb", "ba>c", "ba>ab"])
    assert picked(tree, alpha=0.9, beta=0.0) == ([], [])


def test_inclusive_keeps_values_exactly_at_a_threshold() -> None:
    tree = by_hand({"a": 1.0, "b": 0.5, "c": 0.0})
    assert picked(tree, alpha=1.0, beta=0.5) == ([], [])  # nothing is strictly above alpha 1
    assert picked(tree, alpha=1.0, beta=0.5, inclusive=True) == (["a"], ["a>b", "a>c"])
    assert picked(tree, alpha=1.0, beta=0.0, inclusive=True) == (["a"], ["a>b", "a>c"])  # not a against itself
    assert picked(tree, alpha=0.0, beta=0.5) == (["a", "b"], ["a>c"])
    assert picked(tree, alpha=0.0, beta=0.5, inclusive=True) == (["a", "b", "c"], ["a>b", "a>c", "b>c"])


def test_alpha_applies_to_the_summed_value_and_beta_to_the_mean_values() -> None:
    tree = by_hand({"a": 0.4, "b": 0.0})
    leaf = tree.nodes[leaf_of(tree, "a")]
    leaf.visits, leaf.value = 2, 0.8  # as if search had reached it twice
    assert picked(tree, alpha=0.5, beta=0.3) == (["a"], ["a>b"])
    assert picked(tree, alpha=0.5, beta=0.4) == (["a"], [])  # 0.8 / 2 - 0
    leaf.visits = leaf.value = 0
    assert picked(tree, alpha=0.0, beta=0.0, inclusive=True)[0] == ["a", "b"]  # unvisited: mean value 0


def test_a_tree_whose_root_value_is_zero_is_skipped() -> None:
    tree = by_hand({"a": 0.0, "b": 0.0})
    assert picked(tree, alpha=0.0, beta=0.0, inclusive=True) == ([], [])
    counts = select(tree, ConvertParams(alpha=0.0, inclusive=True), 0).counts
    assert counts == Counts(trees=1, without_reward=1)


def test_a_tree_that_is_only_a_root_has_no_trajectory() -> None:
    tree = by_hand({})
    tree.root.terminal, tree.root.value, tree.root.visits = True, 1.0, 1
    assert picked(tree, alpha=0.0, beta=0.0) == ([], [])


def test_max_pairs_per_tree_draws_pairs_by_the_seed_and_keeps_their_order() -> None:
    tree = by_hand({"abcdefghij"[i]: i / 10 for i in range(10)})
    everything = picked(tree, alpha=0.0, beta=0.1)[1]
    drawn = {seed: picked(tree, seed, alpha=0.0, beta=0.1, max_pairs_per_tree=5)[1] for seed in range(60)}
    assert all(len(pairs) == 5 for pairs in drawn.values())
    assert all([p for p in everything if p in pairs] == pairs for pairs in drawn.values())
    assert len({tuple(pairs) for pairs in drawn.values()}) > 10
    assert {p for pairs in drawn.values() for p in pairs} == set(everything)
    assert picked(tree, 3, alpha=0.0, beta=0.1, max_pairs_per_tree=5)[1] == drawn[3]
    assert picked(tree, alpha=0.0, beta=0.1, max_pairs_per_tree=999)[1] == everything
    twin = tree.model_copy(update={"id": "corridor-2", "seed": "0/corridor-2"})  # the draw differs between trees
    assert picked(twin, 3, alpha=0.0, beta=0.1, max_pairs_per_tree=5)[1] != drawn[3]


def test_counts_are_summed_over_trees_and_reported_in_the_error() -> None:
    trees = [by_hand(PATHS), by_hand({"a": 0.0, "b": 0.0}), by_hand({"a": 0.2, "b": 0.1})]
    trees[2].status = "blocked"
    selections, counts = select_all(trees, ConvertParams(max_pairs_per_tree=4), 0)
    assert [len(s.pairs) for s in selections] == [4, 0, 0]
    assert counts == Counts(
        trees=3, blocked=1, without_reward=1, leaves=7, good_leaves=3, pairs=6, kept_pairs=4
    )  # fmt: skip
    cfg = ConvertParams(alpha=1.0)
    error = nothing_kept(select_all(trees, cfg, 0)[1], cfg)
    assert str(error) == (
        "convert: nothing to train on: 3 trees (1 of them with root value 0, 1 blocked by environment or engine), "
        "7 leaves, 0 good ones (above alpha 1), "
        "0 pairs (above beta 0.2 apart); lower alpha or beta, set inclusive: true, or search more tasks."
    )


@pytest.mark.parametrize("inclusive", [False, True])
def test_pairs_of_searched_trees_respect_alpha_and_beta(inclusive: bool) -> None:
    cfg = ConvertParams(alpha=0.5, beta=0.5, inclusive=inclusive)
    found = 0
    for tree in grown(range(6)):
        for pair in select(tree, cfg, 0).pairs:
            good, bad = tree.nodes[pair.good], tree.nodes[pair.bad]
            assert good.visits == bad.visits == 1  # a searched leaf is visited once: its value is its reward
            assert good.value == good.reward
            assert good.reward > 0.5 or (inclusive and good.reward == 0.5)
            assert good.reward - bad.reward > 0.5 or (inclusive and good.reward - bad.reward == 0.5)
            found += 1
    assert found > 10
