"""Parses an agent's reply, for search and evaluation alike, and cleans observations (docs/agent-r.md, A3).

A reply, and what is made of it ::

    Thought 1: I need planks first.
    Action 1: 1. get 1 oak log

is stored as ``Thought: I need planks first.\\nAction: 1. get 1 oak log`` and acts ``get 1 oak log``.

A reply is any text at all: no action, several, only control characters, ten thousand letters.
"""

import re

WAIT = "wait"
"""The action that the driver answers itself."""
WAITED = "ok."
"""Its answer."""

_MARKERS = ("Action 1:", "Action:")
_ITEM_NUMBER = re.compile(r"^\d+\.\s*")


def parse_action(reply: str) -> str:
    """What the agent does: the text after the last ``Action 1:``, else after the last ``Action:``, else the last line.

    After a marker, a list number (``12. ``) is removed and the action ends with its first line: what a model writes
    after that (an observation of its own, a next thought) is no part of it. Empty if nothing follows the marker.
    """
    reply = reply.strip()
    for marker in _MARKERS:
        _, found, rest = reply.rpartition(marker)
        if found:
            action = _ITEM_NUMBER.sub("", rest.strip())
            return action.partition("\n")[0].strip()
    return reply.rpartition("\n")[2]


def stored_reply(reply: str) -> str:
    """The reply as dialogues, trees and training keep it: stripped, ``Thought 1:`` and ``Action 1:`` without number.

    The colon stays (the original loses that of ``Thought:`` in WebShop). Applying it twice changes nothing more.
    """
    return reply.strip().replace("Action 1:", "Action:").replace("Thought 1:", "Thought:").strip()


def clean_observation(text: str) -> str:
    """An observation on one line: every newline and every tab becomes a space."""
    return text.replace("\n", " ").replace("\t", " ")
