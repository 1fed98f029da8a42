"""Text about the taxi's grid for pretraining: maps with questions about them, and the map after a move.

A page::

    +---------+
    |P: | : : |
    |T: | : : |
    | : : : : |
    | | : | : |
    |D| : | : |
    +---------+
    Where is the passenger?                                 one row north
    Which ways are free?                                    north, south and east
"""

from random import Random

from selfimprove.envs.passages import Passage
from selfimprove.envs.taxi.grid import ABOARD, LANDMARKS, STATES, is_open, moves, picture, place
from selfimprove.envs.taxi.words import where

_WAYS = ("south", "north", "east", "west")
_SHOWN = [state for state in range(STATES) if place(state).passenger != place(state).destination]
"""States in which the passenger does not hide the destination."""


def maps(draws: Random) -> list[Passage]:
    """One or two maps, each with questions; some also with the map after a move."""
    page = []
    for _ in range(draws.randint(1, 2)):
        state = draws.choice(_SHOWN)
        page += [Passage(picture(state)), *draws.sample(_questions(state), draws.randint(3, 5))]
        if draws.random() < 0.3:
            move = draws.randrange(4)
            page.append(Passage(f"The map after the taxi moves {_WAYS[move]}:", picture(moves()[state][move].state)))
    return page


def _questions(state: int) -> list[Passage]:
    here = place(state)
    free = [way for action, way in enumerate(_WAYS) if is_open(here.row, here.column, action)]
    blocked = [way for way in _WAYS if way not in free]
    goal = LANDMARKS[here.destination]
    passenger = (
        "in the taxi"
        if here.passenger == ABOARD
        else where(LANDMARKS[here.passenger][0] - here.row, LANDMARKS[here.passenger][1] - here.column)
    )
    return [
        Passage("In which row and column is the taxi?", f"row {here.row + 1}, column {here.column + 1}", "lookup"),
        Passage("Where is the passenger?", passenger, "lookup"),
        Passage("Where is the destination?", where(goal[0] - here.row, goal[1] - here.column), "lookup"),
        Passage("Which ways are free?", _listed(free), "lookup"),
        Passage("On which sides is a wall?", _listed(blocked), "lookup"),
    ]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"
