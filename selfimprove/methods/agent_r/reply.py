"""Parses an agent's reply, for search and evaluation alike, and cleans observations (docs/agent-r.md, A3).

A reply such as ::

    Thought 1: I need planks first.
    Action 1: 1. get 1 oak log

is stored as ``Thought: I need planks first.\\nAction: 1. get 1 oak log`` and parsed to the action ``get 1 oak log``.

A reply can be any text: no action, several actions, only control characters, ten thousand letters.
"""

import re

WAIT = "wait"
"""The action that is answered without the environment."""
WAITED = "ok."
"""The answer to ``wait``."""

_MARKERS = ("Action 1:", "Action:")
_ITEM_NUMBER = re.compile(r"^\d+\.(?!\d)\s*")
_MARKED = re.compile(r"Action:[^\n]*")
_FIRST_LINE = re.compile(r"Action:\s*[^\n]*")
"""The rest of a line from its first marker, and a marker with the first line of text after it."""


def parse_action(reply: str) -> str:
    """The agent's action: the text after the last ``Action 1:``, or the last ``Action:``, or otherwise the last line.

    After a marker, a list number (``12. ``, but not the ``3.`` of ``3.5``) is removed and the action ends with its
    first line: later text (an observation invented by the model, a next thought) is not part of it. Empty if nothing
    follows the marker.
    """
    reply = reply.strip()
    for marker in _MARKERS:
        _, found, rest = reply.rpartition(marker)
        if found:
            action = _ITEM_NUMBER.sub("", rest.strip())
            return action.partition("\n")[0].strip()
    return reply.rpartition("\n")[2]


def stored_reply(reply: str) -> str:
    """The reply as stored in dialogues, trees and training data: stripped, with markers ``Thought:`` and ``Action:``.

    The colon stays (the original loses that of ``Thought:`` in WebShop). Without its number, ``Action 1:`` would lose
    against a later ``Action:`` that the model invented; the text after the action is then cut, so that the stored reply
    has the reply's action (unless the other marker is on the action's own line). The function is idempotent.
    """
    action = parse_action(reply)
    stored = reply.strip().replace("Action 1:", "Action:").replace("Thought 1:", "Thought:")
    if parse_action(stored) != action:
        for line in _MARKED.finditer(stored):  # a line's last marker: that of its action
            start = stored.rindex(_MARKERS[-1], line.start(), line.end())
            first = _FIRST_LINE.match(stored, start)
            if first and parse_action(first[0]) == action:
                return stored[:start] + first[0].rstrip()
    return stored


def clean_observation(text: str) -> str:
    """The observation on one line, with every newline and tab replaced by a space."""
    return text.replace("\n", " ").replace("\t", " ")
