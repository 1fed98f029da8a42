"""Parses a policy's reply in one round: a thought and an action (docs/spin.md, S9).

::

     I need the author of The Silver Gate.        thought   I need the author of The Silver Gate.
    Action: search[The Silver Gate [novel]]       tool      search
    Observation: hallucinated …                   argument  The Silver Gate [novel]

The argument ends at the line's last ``]``. The original split at every bracket, which cut arguments short, and repeated
an action without brackets until the cap on rounds.
"""

from dataclasses import dataclass

STOP = "\nObservation:"
"""Where generation stops: the tool answers next."""
ASKED = "Action: "
"""A reply without it is asked for again."""

_CUE = "Thought:"
_ACTION = "Action:"


@dataclass(frozen=True)
class Parsed:
    """One reply. ``action``: its line as it is written into the trajectory; ``tool``: None where there is none."""

    thought: str
    action: str
    tool: str | None
    argument: str


def cut(reply: str) -> str:
    """The reply up to the first place where a tool would speak."""
    return reply.partition(STOP)[0]


def parse(reply: str) -> Parsed:
    """Parse a reply; any text can be parsed.

    ``tool`` is lower-cased. It is None where the reply has no ``Action:``, its line no ``[``, or the name is empty;
    the tools know which names exist.
    """
    before, _, after = cut(reply).partition(_ACTION)
    line = after.partition("\n")[0].strip()
    thought = before.strip().removeprefix(_CUE).strip()
    name, bracket, rest = line.partition("[")
    if not bracket or not name.strip():
        return Parsed(thought, line, None, "")
    argument = rest.rpartition("]")[0] if "]" in rest else rest
    return Parsed(thought, line, name.strip().lower(), argument.strip())
