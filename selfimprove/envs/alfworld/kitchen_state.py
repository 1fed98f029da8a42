"""An ALFWorld episode as Reflect-RL's models read it: room and goal, what was done and seen, the labelled commands.

The text is the original's, the same for the built-in kitchen and for ALFWorld itself (docs/reflect-rl.md, L42)::

    You are in the middle of a room. Looking quickly around you, you see a fridge 1, and a sinkbasin 1.

    Your task is to: cool some mug and put it in sinkbasin.

    Here is the previous path:
    --- Step: 0 ---
    Action: go to fridge 1
    Observation: You arrive at fridge 1. The fridge 1 is closed.



    The actions you can take now is:
    Action 0: open fridge 1
    Action 1: look
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ACTION_HEADING = "\nThe actions you can take now is:"  # the original's, grammar included


def state_text(first: str, path: Sequence[tuple[str, str]]) -> str:
    """The state up to the heading. ``first``: what ``reset`` gave; ``path``: (action, observation), oldest first."""
    steps = "".join(
        f"--- Step: {i} ---\nAction: {action}\nObservation: {observation}\n\n"
        for i, (action, observation) in enumerate(path)
    )
    return first + (f"\n\nHere is the previous path:\n{steps}" if path else "") + "\n"


def action_list(labelled: Iterable[tuple[str, str]]) -> str:
    """The heading and a line for each (label, command), in the given order."""
    return ACTION_HEADING + "\n" + "\n".join(f"Action {label}: {command}" for label, command in labelled)
