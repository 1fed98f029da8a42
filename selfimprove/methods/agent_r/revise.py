"""Revision trajectories: a bad path up to its error, a revision turn, and the rest of a good path.

Of two paths of one tree that part after the second step ::

    initial    Action: get 1 oak log          Action: craft 4 oak planks using 1 oak log
    bad        Action: get 5 stone [error]    Action: craft stick using 5 stone …
    good       Action: craft 4 stick using 2 oak planks …

the conversation is: initial, ``get 5 stone``, ``Thought: I chose badly. …  Action: wait``, ``ok.``, and the good steps
from ``craft 4 stick`` on. The revision turn and what follows it are trained on (docs/agent-r.md, A21 to A24).
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from selfimprove.core.records import Message
from selfimprove.core.seeds import rng
from selfimprove.methods.agent_r.reply import WAIT, WAITED
from selfimprove.methods.agent_r.tree import Tree, turn_messages

THOUGHTS_FILE = Path(__file__).with_name("revision_thoughts.yaml")
REVISION_THOUGHTS: tuple[str, ...] = tuple(YAML(typ="safe").load(THOUGHTS_FILE.read_text(encoding="utf-8")))
"""Ten sentences, all of which can be drawn."""


def revision_reply(thought: str) -> str:
    """The reply of a revision turn."""
    return f"Thought: {thought}\nAction: {WAIT}"


def revision_turn(thought: str) -> list[Message]:
    """What the agent says (trained on) and what the driver answers."""
    return [
        Message(role="assistant", content=revision_reply(thought), weight=1.0),
        Message(role="user", content=WAITED),
    ]


def choose_thought(*names: object) -> str:
    """One of the ten, drawn by a seed that names the pair.

    The original can reach only the first ten of its twenty and seeds the generator anew for every tree, so that all
    trees get the same sequence.
    """
    return rng("revision_thought", *names).choice(REVISION_THOUGHTS)


def branch_point(good: Sequence[int], bad: Sequence[int]) -> int:
    """How many steps two paths share: the length of the *initial* part."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(good, bad, strict=False)))


def splice(tree: Tree, good: Sequence[int], bad: Sequence[int], thought: str) -> list[Message]:
    """The revision trajectory of two paths (node indices from the first action on).

    ``bad`` ends with its first bad step (``judge.transition_point``), or is the whole path in direct revision
    (``revise: 0``). The good steps are those from the first node that differs; token ids stay as generated. The last
    message is the environment's last answer.
    """
    return [
        *_context(tree.prompt),
        *steps(tree, bad, 0.0),
        *revision_turn(thought),
        *steps(tree, good[branch_point(good, bad) :], 1.0),
    ]


def spliced_actions(tree: Tree, good: Sequence[int], bad: Sequence[int]) -> list[str]:
    """What each reply of ``splice`` behind the tree's prompt did."""
    return [
        *(tree.nodes[index].action for index in bad),
        WAIT,
        *(tree.nodes[index].action for index in good[branch_point(good, bad) :]),
    ]


def whole(tree: Tree, path: Sequence[int], weight: float = 1.0) -> list[Message]:
    """The opening and every step of a path; all of the agent's replies have the weight, except the canned one."""
    return [*_context(tree.prompt), *steps(tree, path, weight)]


def steps(tree: Tree, path: Sequence[int], weight: float) -> list[Message]:
    """Replies of that weight, and observations."""
    messages = []
    for index in path:
        reply, observation = turn_messages(tree.nodes[index])
        messages += [_weighted(reply, weight), observation]
    return messages


def _context(messages: Sequence[Message]) -> list[Message]:
    return [_weighted(message, 0.0) for message in messages]


def _weighted(message: Message, weight: float) -> Message:
    update: dict[str, Any] = {"weight": weight}
    return message.model_copy(update=update)
