"""Revision trajectories: a bad path up to its error, a revision turn, and the rest of a good path.

For example, for two paths of one tree that diverge after the second step ::

    initial    Action: get 1 oak log          Action: craft 4 oak planks using 1 oak log
    bad        Action: get 5 stone [error]    Action: craft stick using 5 stone …
    good       Action: craft 4 stick using 2 oak planks …

the conversation is: initial, ``get 5 stone``, ``Thought: I chose badly. …  Action: wait``, ``ok.``, and the good steps
from ``craft 4 stick`` on. Only the revision turn and the steps after it are trained on (docs/agent-r.md, A21 to A24).
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from ruamel.yaml import YAML

from selfimprove.core.records import Message
from selfimprove.core.seeds import rng
from selfimprove.methods.agent_r.reply import WAIT, WAITED
from selfimprove.methods.agent_r.tree import Tree, turn_messages

THOUGHTS_FILE = Path(__file__).with_name("revision_thoughts.yaml")
REVISION_THOUGHTS: tuple[str, ...] = tuple(YAML(typ="safe").load(THOUGHTS_FILE.read_text(encoding="utf-8")))
"""Ten revision thoughts, all of which can be drawn."""


def revision_reply(thought: str) -> str:
    """The reply of a revision turn."""
    return f"Thought: {thought}\nAction: {WAIT}"


def revision_turn(thought: str) -> list[Message]:
    """The agent's revision reply (trained on) and the answer to it."""
    return [
        Message(role="assistant", content=revision_reply(thought), weight=1.0),
        Message(role="user", content=WAITED),
    ]


def choose_thought(*names: object) -> str:
    """One of the ten thoughts, drawn by a seed derived from the pair's names.

    The original can reach only the first ten of its twenty thoughts and re-seeds the generator for every tree, so that
    all trees with equally many pairs get the same sequence.
    """
    return rng("revision_thought", *names).choice(REVISION_THOUGHTS)


def branch_point(good: Sequence[int], bad: Sequence[int]) -> int:
    """The number of steps two paths share, i.e. the length of the *initial* part."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(good, bad, strict=False)))


def splice(tree: Tree, good: Sequence[int], bad: Sequence[int], thought: str) -> list[Message]:
    """The revision trajectory of two paths (node indices from the first action on).

    ``bad`` ends with its first bad step (``judge.transition_point``), or is the whole path in direct revision
    (``revise: false``). Good steps start at the first node that differs. Token ids stay as generated. The last message
    is the environment's last observation.
    """
    return [
        *(_weighted(message, 0.0) for message in tree.prompt),
        *steps(tree, bad, 0.0),
        *revision_turn(thought),
        *steps(tree, good[branch_point(good, bad) :], 1.0),
    ]


def spliced_actions(tree: Tree, good: Sequence[int], bad: Sequence[int]) -> list[str]:
    """The action of each reply of ``splice`` after the tree's prompt."""
    return [
        *(tree.nodes[index].action for index in bad),
        WAIT,
        *(tree.nodes[index].action for index in good[branch_point(good, bad) :]),
    ]


def whole(tree: Tree, path: Sequence[int], weight: float = 1.0) -> list[Message]:
    """The opening and every step of a path; all replies in the path have the weight, those in the opening 0."""
    return [*(_weighted(message, 0.0) for message in tree.prompt), *steps(tree, path, weight)]


def steps(tree: Tree, path: Sequence[int], weight: float) -> list[Message]:
    """The replies, with this weight, and observations of a path."""
    messages = []
    for index in path:
        reply, observation = turn_messages(tree.nodes[index])
        messages += [_weighted(reply, weight), observation]
    return messages


def _weighted(message: Message, weight: float) -> Message:
    return message.model_copy(update={"weight": weight})
