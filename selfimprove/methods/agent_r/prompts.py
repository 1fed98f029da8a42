"""The opening conversation of every Agent-R episode, and the truncation of long dialogues (docs/agent-r.md, A2, A5).

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
"""Number of messages before the first action; never cut, and never trained on in a trajectory."""


def opening(instruction: str, observation: str) -> list[Message]:
    """The messages before the first action. The first observation keeps its line breaks, as in the original."""
    return [
        Message(role="system", content=SYSTEM),
        Message(role="user", content=instruction),
        Message(role="assistant", content=ASSENT),
        Message(role="user", content=observation),
    ]


def check_opening(roles: Sequence[str]) -> None:
    """Refuse a conversation that no action can follow.

    Raises:
        ValueError: it is shorter than the opening, or user and assistant do not alternate after the first message.
    """
    if len(roles) < OPENING or len(roles) % 2:
        raise ValueError(f"the conversation begins with {len(roles)} messages, not with an even number from {OPENING}")
    if list(roles[1:]) != (["user", "assistant"] * len(roles))[: len(roles) - 1]:
        raise ValueError("after the first message, user and assistant must alternate, ending with user")


def trim(messages: Sequence[Message], engine: Engine, max_tokens: int, opening: int = OPENING) -> list[Message]:
    """Drop as few of the oldest (action, observation) pairs as needed to fit the engine's context.

    The original cuts at the wrong place, which leaves action 1 with observation 2, and fails on short histories. If
    even the opening does not fit, it is returned unchanged and the engine refuses the request.
    """
    pairs = (len(messages) - opening + 1) // 2

    def without(dropped: int) -> list[Message]:
        return [*messages[:opening], *messages[opening + 2 * dropped :]]

    if pairs < 1 or engine.fits(messages, max_tokens):
        return list(messages)
    # Each check tokenises the whole dialogue, so the number of pairs is found by bisection.
    enough = bisect_left(range(1, pairs), True, key=lambda dropped: engine.fits(without(dropped), max_tokens))
    return without(1 + enough)
