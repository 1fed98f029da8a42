"""Parses a policy's reply in one round: a thought and an action (docs/spin.md, S9).

::

     I need the author of The Silver Gate.        thought   I need the author of The Silver Gate.
    Action: search[The Silver Gate [novel]]       tool      search
    Observation: hallucinated …                   argument  The Silver Gate [novel]

The argument ends at the line's last ``]``. The original splits at every bracket, which cuts arguments short, and
repeats an action without brackets until the cap on rounds.
"""

from dataclasses import dataclass

STOP = "\nObservation:"
"""Stop string of generation: the tool answers next."""
ASKED = "Action: "
"""A reply without this text is requested again."""

_CUE = "Thought:"
_ACTION = "Action:"


@dataclass(frozen=True)
class Parsed:
    """A parsed reply. ``action``: its line as written into the trajectory; ``tool``: None if there is none."""

    thought: str
    action: str
    tool: str | None
    argument: str


def cut(reply: str) -> str:
    """The reply up to the first observation."""
    return reply.partition(STOP)[0]


def parse(reply: str) -> Parsed:
    """Parse a reply, which can be any text.

    ``tool`` is in lower case. It is None if the reply has no ``Action:``, the action's line has no ``[``, or the name
    is empty. Whether the tool exists is not checked here.
    """
    before, _, after = cut(reply).partition(_ACTION)
    line = after.partition("\n")[0].strip()
    thought = before.strip().removeprefix(_CUE).strip()
    name, bracket, rest = line.partition("[")
    if not bracket or not name:
        return Parsed(thought, line, None, "")
    argument = rest.rpartition("]")[0] if "]" in rest else rest
    return Parsed(thought, line, name.strip().lower(), argument.strip())
