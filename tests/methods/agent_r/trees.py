"""Small search trees for tests: written by hand, or grown in the corridor by a scripted actor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from selfimprove.core.seeds import rng
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.methods.agent_r.params import SearchParams
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tree import Node, Tree
from tests.methods.agent_r.corridor import Corridor

PROMPT = opening("Find the way.", "You stand at a fork.")
ACTIONS = ("right", "left", "take key", "open door", "jump", "look")


def by_hand(paths: Mapping[str, float], *, tree_id: str = "corridor-1", ids: bool = False) -> Tree:
    """A tree from its paths, one letter per action, and the rewards of their leaves: {"abc": 1.0, "abd": 0.0}.

    Replies are ``Thought: go <letter>.\\nAction: <letter>``, observations ``saw <path so far>``.
    """
    nodes = [Node()]
    at = {"": 0}
    for path, reward in paths.items():
        for depth in range(1, len(path) + 1):
            here = path[:depth]
            if here in at:
                continue
            parent, at[here] = at[path[: depth - 1]], len(nodes)
            letter = path[depth - 1]
            nodes.append(
                Node(parent=parent, reply=f"Thought: go {letter}.\nAction: {letter}", action=letter,
                     observation=f"saw {here}", token_ids=[ord(letter)] if ids else None, depth=depth)
            )  # fmt: skip
            nodes[parent].children.append(at[here])
        leaf = nodes[at[path]]
        leaf.terminal, leaf.reward, leaf.done = True, reward, True
        index: int | None = at[path]
        while index is not None:
            nodes[index].visits += 1
            nodes[index].value += reward
            index = nodes[index].parent
    return Tree(id=tree_id, env="corridor", task_id=1, prompt=PROMPT, nodes=nodes, seed=f"0/{tree_id}")


def leaf_of(tree: Tree, path: str) -> int:
    """The node that ``by_hand`` created for a path."""
    return next(i for i, node in enumerate(tree.nodes) if node.observation == f"saw {path}")


def letters(tree: Tree, path: Sequence[int]) -> str:
    return "".join(tree.nodes[i].action for i in path)


def grown(tasks: Sequence[int], *, seed: int = 0, dives: int = 6, n_gen: int = 4, depth: int = 8) -> list[Tree]:
    """Trees searched in the corridor by an actor that draws random actions, those of the expert more often."""
    env = Corridor()

    def answer(request: Any, index: Any) -> str:
        dice = rng(request.seed.at(index).bits())
        return f"Thought: So be it.\nAction: {dice.choice((*ACTIONS, 'right', 'left', 'take key'))}"

    cfg = SearchParams(tasks=1, max_depth=depth, dives=dives, n_gen=n_gen)
    world = EmbeddedWorld(env)

    async def run() -> list[Tree]:
        return [await search(task, world, ScriptedEngine(answer), cfg, seed) for task in tasks]

    return asyncio.run(run())
