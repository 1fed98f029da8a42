"""The conversation that every Agent-R episode opens with, and how an over-long one is cut (docs/agent-r.md, A2, A5).

system     You are a helpful assistant.
user       <the environment's instruction>
assistant  Ok.
user       <the first observation>
assistant  Thought: …\\nAction: …
user       <observation>
…
"""

from bisect import bisect_left
from collections.abc import Sequence

from selfimprove.core.records import Message
from selfimprove.engines.base import Engine

SYSTEM = "You are a helpful assistant."
ASSENT = "Ok."
OPENING = 4
"""How many messages stand before the first action; never cut, and never trained on in a trajectory."""


def opening(instruction: str, observation: str) -> list[Message]:
    """The messages before the first action. The first observation keeps its lines, as in the original."""
    return [
        Message(role="system", content=SYSTEM),
        Message(role="user", content=instruction),
        Message(role="assistant", content=ASSENT),
        Message(role="user", content=observation),
    ]


def trim(messages: Sequence[Message], engine: Engine, max_tokens: int, opening: int = OPENING) -> list[Message]:
    """The messages without as many of the oldest (action, observation) pairs as it takes to fit the engine's context.

    The original cuts at the wrong place, so that action 1 is left with observation 2, and fails on short histories.
    Here an opening that does not fit by itself is returned as it is: the engine then refuses the request.
    """
    pairs = (len(messages) - opening + 1) // 2

    def without(dropped: int) -> list[Message]:
        return [*messages[:opening], *messages[opening + 2 * dropped :]]

    if pairs < 1 or engine.fits(messages, max_tokens):
        return list(messages)
    # Asking costs a tokenisation of everything, so the number is found by bisection.
    enough = bisect_left(range(1, pairs), True, key=lambda dropped: engine.fits(without(dropped), max_tokens))
    return without(1 + enough)
