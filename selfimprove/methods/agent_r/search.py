"""Agent-R's Monte Carlo tree search over one task (docs/agent-r.md, A7 to A12).

This module does not batch, retry, write or log. The runner grows hundreds of trees concurrently, the engine batches all
pending requests, a journal around the engine preserves finished expansions if the process is killed, and the world
keeps one state per node, so nothing is replayed. A node's noise is seeded by the tree and by the replies that lead to
the node. A tree therefore does not depend on other work or on the order in which its nodes were created.
"""

import math
from collections.abc import Sequence

from selfimprove.core.seeds import SeedKey, key_bits, rng
from selfimprove.engines.base import Completion, Engine, EngineError
from selfimprove.envs.interface import EnvError, World, name_of
from selfimprove.methods.agent_r.acting import EpisodeState, act, ask, begin, episode_id, generated_ids
from selfimprove.methods.agent_r.params import SearchParams
from selfimprove.methods.agent_r.reply import stored_reply
from selfimprove.methods.agent_r.tree import Node, Tree


async def search(
    task_id: int, world: World, actor: Engine, cfg: SearchParams, seed: int, prior: Sequence[str] = ()
) -> Tree:
    """Grow one tree with ``cfg.dives`` dives from the root, or fewer if every path has ended before.

    Args:
        prior: replies given before the root; their messages are part of the tree's ``prompt``.

    If the engine or environment fails permanently, the tree is ``blocked`` and keeps every complete expansion.
    ``solved``: a node reached score 1.
    """
    name = episode_id(world, task_id, prior)
    tree = Tree(id=name, env=name_of(world, task_id), task_id=task_id, prompt=[], nodes=[Node()], seed=f"{seed}/{name}")
    try:
        prompt, states = await begin(world, task_id, prior)
        for here in states[1:]:
            prompt += here.messages
        tree.prompt = prompt
        await _Search(tree, states[-1], world, actor, cfg, seed).run()
    except (EngineError, EnvError) as error:
        tree.status, tree.error = "blocked", str(error)
        return tree
    if any(node.reward == 1 for node in tree.nodes):
        tree.status = "solved"
    return tree


def q_value(node: Node) -> float:
    """Mean of the leaf rewards backed up through the node; 0 if unvisited."""
    return node.value / node.visits if node.visits else 0.0


def uct(node: Node, parent: Node | None, exploration: float) -> float:
    """``value/visits + exploration * sqrt(ln(parent.visits) / visits)``; no bonus for unvisited nodes and the root.

    There is no bonus below an unvisited parent either, which may occur in a tree from another program.
    """
    if parent is None or node.visits == 0 or parent.visits == 0:
        return q_value(node)
    return q_value(node) + exploration * math.sqrt(math.log(parent.visits) / node.visits)


def best_children(tree: Tree, index: int, exploration: float) -> list[int]:
    """The children that selection may choose: unvisited non-terminal ones, or otherwise those with the highest UCT."""
    node = tree.nodes[index]
    scores = {
        child: uct(tree.nodes[child], node, exploration) if tree.nodes[child].visits else math.inf
        for child in node.children
        if not tree.nodes[child].terminal
    }
    best = max(scores.values(), default=None)
    return [child for child, score in scores.items() if score == best]


def backup(tree: Tree, leaf: int) -> None:
    """Add a leaf's reward to itself and its ancestors; a node whose children are all terminal becomes terminal."""
    reward, at = tree.nodes[leaf].reward, tree.nodes[leaf]
    while True:
        at.visits += 1
        at.value += reward
        at.terminal = all(tree.nodes[child].terminal for child in at.children)
        if at.parent is None:
            return
        at = tree.nodes[at.parent]


class _Search:
    """A growing tree. ``states``: states of nodes that can still be expanded; ``keys``: noise keys of all nodes."""

    def __init__(
        self, tree: Tree, start: EpisodeState, world: World, actor: Engine, cfg: SearchParams, seed: int
    ) -> None:
        self.tree, self.world, self.actor, self.cfg, self.seed = tree, world, actor, cfg, seed
        root = tree.root
        root.reward, root.terminal, root.done, root.disaster = start.reward, start.done, start.done, start.disaster
        self.states = {0: start}
        self.keys = [key_bits("root")]

    async def run(self) -> None:
        while self.tree.dives < self.cfg.dives and not self.tree.root.terminal:
            await self.dive()
            self.tree.dives += 1

    async def dive(self) -> None:
        """Alternate expansion and selection until every child of the reached node is terminal."""
        node: int | None = 0
        while node is not None:
            if not self.tree.nodes[node].children:
                await self.expand(node)
            node = self.select(node)

    def select(self, index: int) -> int | None:
        """Descend from a node through best children to an unexpanded one; None if all paths have ended."""
        at = index
        while self.tree.nodes[at].children:
            best = best_children(self.tree, at, self.cfg.exploration)
            if not best:  # ``backup`` has marked the node as terminal
                return None
            at = rng("tie", self.seed, self.tree.id, self.tree.dives, self.keys[at]).choice(best)
        return at

    async def expand(self, index: int) -> None:
        """Sample ``n_gen`` replies in one request, drop duplicates, and step each from the node's state.

        The children are added to the tree together, and terminal ones are backed up at once.
        """
        tree, cfg, parent = self.tree, self.cfg, self.tree.nodes[index]
        key = SeedKey(self.seed, f"{tree.id}/{self.keys[index]:016x}", parent.depth)
        drawn, omitted = await ask(self.actor, tree.conversation(index), cfg, key, cfg.n_gen)
        unlike: dict[str, Completion] = {}
        for completion in drawn:
            unlike.setdefault(stored_reply(completion.text), completion)
        children = []
        for reply, completion in unlike.items():
            here = await act(self.world, self.states[index], completion.text)
            depth = parent.depth + 1
            node = Node(
                parent=index,
                reply=reply,
                action=here.action,
                observation=here.observation,
                token_ids=generated_ids(completion, reply),
                finish=completion.finish,
                depth=depth,
                reward=here.reward,
                terminal=here.done or depth > cfg.max_depth,
                done=here.done,
                disaster=here.disaster,
                valid=here.valid,
                omitted=omitted,
            )
            children.append((node, here))
        tree.duplicates += len(drawn) - len(children)
        del self.states[index]
        first = len(tree.nodes)
        parent.children = list(range(first, first + len(children)))
        for at, (node, here) in enumerate(children, start=first):
            tree.nodes.append(node)
            self.keys.append(key_bits(self.keys[index], node.reply))
            if not node.terminal:
                self.states[at] = here
        for at in parent.children:
            if tree.nodes[at].terminal:
                backup(tree, at)
