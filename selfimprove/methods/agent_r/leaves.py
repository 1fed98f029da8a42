"""A tree's leaves in the original's order."""

from __future__ import annotations

from selfimprove.methods.agent_r.search import q_value
from selfimprove.methods.agent_r.tree import Tree


def leaf_paths(tree: Tree) -> list[list[int]]:
    """Every path from the root (node 0) to a terminal node without children, depth first as in the original."""
    paths, stack = [], [[0]]
    while stack:
        path = stack.pop()
        node = tree.nodes[path[-1]]
        if node.terminal and not node.children:
            paths.append(path)
        stack += [[*path, child] for child in reversed(node.children)]
    return paths


def sorted_leaf_paths(tree: Tree) -> list[list[int]]:
    """``leaf_paths``, highest mean value of the leaf first; equal ones stay depth first."""
    return sorted(leaf_paths(tree), key=lambda path: -q_value(tree.nodes[path[-1]]))
