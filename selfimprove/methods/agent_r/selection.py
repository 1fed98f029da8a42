"""Selects good trajectories and (good, bad) pairs from the leaves of search trees (docs/agent-r.md, A16).

As in the original, two different quantities of a leaf are compared: *alpha* with its ``value``, the sum of the rewards
backed up through it, and *beta* with the difference of mean values, ``value / visits``. For a leaf visited once, as all
leaves of a search are, both equal its reward. Comparisons use plain floating-point numbers (0.9 - 0.7 is above 0.2).
The original intends the same but compares strings with numbers and fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.search import q_value
from selfimprove.methods.agent_r.tree import Tree


@dataclass(frozen=True)
class LeafPair:
    """Two leaves of one tree, as node indices."""

    good: int
    bad: int


@dataclass
class Counts:
    """Counts before and after selection, over all trees.

    ``without_reward``: trees whose root value is 0, which are skipped; the counts listed after it exclude them.
    """

    trees: int = 0
    blocked: int = 0
    without_reward: int = 0
    leaves: int = 0
    good_leaves: int = 0
    pairs: int = 0
    kept_pairs: int = 0

    def add(self, other: Counts) -> None:
        """Add another tree's counts."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True)
class Selection:
    """One tree's good leaves, best first, and its pairs, ordered by rank of the good and then of the bad leaf."""

    good: list[int]
    pairs: list[LeafPair]
    counts: Counts


def ranked_leaves(tree: Tree) -> list[int]:
    """The leaves in order of decreasing mean value, ties in depth-first order. The root is not a leaf."""
    found, stack = [], tree.root.children[::-1]
    while stack:
        node = tree.nodes[index := stack.pop()]
        if node.terminal and not node.children:
            found.append(index)
        stack += node.children[::-1]
    return sorted(found, key=lambda leaf: -q_value(tree.nodes[leaf]))


def is_good(score: float, cfg: ConvertParams) -> bool:
    """Whether a score is above ``alpha``."""
    return _above(score, cfg.alpha, cfg.inclusive)


def select(tree: Tree, cfg: ConvertParams, seed: int) -> Selection:
    """The good leaves of a tree and its qualifying pairs: all, or ``max_pairs_per_tree`` of them drawn by the seed."""
    counts = Counts(trees=1, blocked=int(tree.status == "blocked"))
    if tree.root.value <= 0:
        counts.without_reward = 1
        return Selection([], [], counts)
    leaves = ranked_leaves(tree)
    good = [leaf for leaf in leaves if is_good(tree.nodes[leaf].value, cfg)]
    mean = {leaf: q_value(tree.nodes[leaf]) for leaf in leaves}
    pairs = [
        LeafPair(high, low)
        for high in good
        for low in leaves
        if low != high and _above(mean[high] - mean[low], cfg.beta, cfg.inclusive)
    ]
    counts.leaves, counts.good_leaves, counts.pairs = len(leaves), len(good), len(pairs)
    if cfg.max_pairs_per_tree is not None and len(pairs) > cfg.max_pairs_per_tree:
        chosen = rng("pairs", seed, tree.seed, tree.id).sample(range(len(pairs)), cfg.max_pairs_per_tree)
        pairs = [pairs[i] for i in sorted(chosen)]
    counts.kept_pairs = len(pairs)
    return Selection(good, pairs, counts)


def select_all(trees: Sequence[Tree], cfg: ConvertParams, seed: int) -> tuple[list[Selection], Counts]:
    """Every tree's selection, in order, and the total counts."""
    selections = [select(tree, cfg, seed) for tree in trees]
    total = Counts()
    for selection in selections:
        total.add(selection.counts)
    return selections, total


def nothing_kept(counts: Counts, cfg: ConvertParams) -> UserError:
    """The error for thresholds that keep nothing, with the counts and a remedy."""
    word = "at least" if cfg.inclusive else "above"
    blocked = f", {counts.blocked} blocked by environment or engine" if counts.blocked else ""
    return UserError(
        f"convert: nothing to train on: {counts.trees} trees ({counts.without_reward} of them with root value 0"
        f"{blocked}), {counts.leaves} leaves, {counts.good_leaves} good ones ({word} alpha {cfg.alpha:g}), "
        f"{counts.pairs} pairs ({word} beta {cfg.beta:g} apart); lower alpha or beta, set inclusive: true, or search "
        "more tasks."
    )


def _above(value: float, threshold: float, inclusive: bool) -> bool:
    return value >= threshold if inclusive else value > threshold
