"""Storage format of search trees: one JSON line per tree, with the opening conversation once and one row per node.

A node is a reply and its observation. A node's conversation is the tree's ``prompt`` plus the (reply, observation)
pairs on the path from the root (``Tree.conversation``). The original stores the whole conversation in every node.
"""

from typing import Self

from pydantic import Field, field_validator, model_validator

from selfimprove.core.records import Finish, Message, Record, Status
from selfimprove.methods.agent_r.prompts import check_opening


class Node(Record):
    """One node; node 0 is the root, which has no reply.

    ``reply`` is the stored reply (numbered markers rewritten); ``token_ids`` are its ids as generated, or None if the
    stored text differs from the generated one. ``reward`` is the normalised score at this node; ``value`` is the *sum*
    of the leaf rewards backed up through it.
    """

    parent: int | None = None
    reply: str = ""
    action: str = ""
    observation: str = ""
    token_ids: list[int] | None = None
    finish: Finish | None = None
    depth: int = 0
    visits: int = Field(default=0, ge=0, le=2**53)
    value: float = 0.0
    reward: float = 0.0
    terminal: bool = False
    done: bool = Field(default=False, description="True: the environment ended the episode here, not the depth limit")
    disaster: bool = False
    valid: bool = True
    omitted: int = Field(
        default=0, ge=0, description="number of earlier messages (the oldest) omitted from the reply's prompt"
    )
    children: list[int] = Field(default=[])


class Tree(Record):
    """The search tree of one task. Nodes are in order of creation, so parents precede their children."""

    id: str
    env: str
    task_id: int
    prompt: list[Message]
    nodes: list[Node]
    seed: str
    dives: int = 0
    duplicates: int = Field(default=0, description="samples dropped because a sibling has the same text")
    status: Status = "unsolved"
    error: str | None = None

    @model_validator(mode="after")
    def _conversation(self) -> Self:
        if self.prompt or len(self.nodes) > 1:
            check_opening([message.role for message in self.prompt])
        return self

    @field_validator("nodes")
    @classmethod
    def _one_tree(cls, nodes: list[Node]) -> list[Node]:
        if not nodes or nodes[0].parent is not None:
            raise ValueError("the first node must be the root, whose parent is null")
        children: list[list[int]] = [[] for _ in nodes]
        for i, node in enumerate(nodes[1:], start=1):
            if node.parent is None or not 0 <= node.parent < i:
                raise ValueError(f"node {i} has parent {node.parent}, but a node must come after its parent")
            children[node.parent].append(i)
        for i, node in enumerate(nodes):
            if sorted(node.children) != children[i]:
                raise ValueError(f"node {i} has children {node.children}, but is the parent of {children[i]}")
        return nodes

    @property
    def root(self) -> Node:
        """Node 0."""
        return self.nodes[0]

    def leaves(self) -> list[int]:
        """Indices of the terminal nodes without children, in order of creation."""
        return [i for i, node in enumerate(self.nodes) if node.terminal and not node.children]

    def path(self, index: int) -> list[int]:
        """Indices from the first action to node ``index``, without the root."""
        way: list[int] = []
        at: int | None = index
        while at is not None and self.nodes[at].parent is not None:
            way.append(at)
            at = self.nodes[at].parent
        return way[::-1]

    def conversation(self, index: int) -> list[Message]:
        """The messages up to and including node ``index``'s observation."""
        messages = list(self.prompt)
        for i in self.path(index):
            messages += turn_messages(self.nodes[i])
        return messages


def turn_messages(node: Node) -> tuple[Message, Message]:
    """The reply and the observation of a node, as messages."""
    return (
        Message(role="assistant", content=node.reply, token_ids=node.token_ids, finish=node.finish),
        Message(role="user", content=node.observation),
    )
