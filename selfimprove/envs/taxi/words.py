"""The taxi expert's thoughts: one short first-person sentence for a state and an action of a shortest path."""

from selfimprove.core.seeds import rng
from selfimprove.envs.taxi.grid import ABOARD, ACTIONS, DROP_OFF, EAST, NORTH, PICK_UP, SOUTH, WEST, place

_PICK_UP = (
    "I stand where the passenger waits, so I pick them up.",
    "The passenger is right here, so they can get in.",
    "This is the passenger's cell, so now I take them aboard.",
)
_DROP_OFF = (
    "The passenger is aboard and this is the destination, so I drop them off.",
    "We have arrived, so the passenger gets off here.",
    "The destination is under me, so I let the passenger out.",
)
_TOWARDS = (
    "The {target} is {where}, so I {action}.",
    "I {action}, because the {target} is {where}.",
    "From here the {target} lies {where}, and the way {compass} is free, so I {action}.",
)
_AROUND = (
    "The {target} is {where}, but a wall stands between, so I {action} to get around it.",
    "A wall keeps me from the {target}, which is {where}, so I {action} first.",
    "I {action} to find a way around the wall, because the {target} is {where}.",
)
_NUMBERS = ("no", "one", "two", "three", "four")


def thought(state: int, action: int) -> str:
    """The sentence, drawn by the state and the action alone."""
    here = place(state)
    down, right = here.target[0] - here.row, here.target[1] - here.column
    if action == PICK_UP:
        templates = _PICK_UP
    elif action == DROP_OFF:
        templates = _DROP_OFF
    else:
        nearer = {SOUTH: down > 0, NORTH: down < 0, EAST: right > 0, WEST: right < 0}[action]
        templates = _TOWARDS if nearer else _AROUND
    return (
        rng("taxi thought", state, action)
        .choice(templates)
        .format(
            target="destination" if here.passenger == ABOARD else "passenger",
            where=where(down, right),
            action=ACTIONS[action],
            compass=ACTIONS[action].removeprefix("move "),
        )
    )


def where(down: int, right: int) -> str:
    """``(-2, 1)``: two rows north and one column east."""
    parts = []
    if down:
        parts.append(f"{_NUMBERS[abs(down)]} row{'s' * (abs(down) > 1)} {'south' if down > 0 else 'north'}")
    if right:
        parts.append(f"{_NUMBERS[abs(right)]} column{'s' * (abs(right) > 1)} {'east' if right > 0 else 'west'}")
    return " and ".join(parts) or "right here"
