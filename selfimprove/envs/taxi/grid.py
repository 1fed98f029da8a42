"""The Taxi problem's grid (Dietterich 2000; tables as in Gym's Taxi-v3 and v4): states, moves, map, shortest paths.

A state is a number below 500: ``((row * 5 + column) * 5 + passenger) * 4 + destination``. The passenger waits at a
landmark (0 to 3: red, green, yellow, blue) or is aboard (4). This module contains only tables and pure functions of
them; episodes are in ``env.py``.
"""

from functools import cache
from typing import NamedTuple

ACTIONS = ("move south", "move north", "move east", "move west", "pickup passenger", "drop off passenger")
SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF = range(6)
LANDMARKS = ((0, 0), (0, 4), (4, 0), (4, 3))
ABOARD = 4
STATES = 500
STEP, ILLEGAL, DELIVERY = -1, -10, 20  # Gym's rewards

# Between two cells of a row, ":" is open and "|" is a wall. The letters are the landmarks.
_PLAN = (
    "+---------+",
    "|R: | : :G|",
    "| : | : : |",
    "| : : : : |",
    "| | : | : |",
    "|Y| : |B: |",
    "+---------+",
)


class Place(NamedTuple):
    """A decoded state: the taxi's cell, the passenger's landmark or ``ABOARD``, the destination's landmark."""

    row: int
    column: int
    passenger: int
    destination: int

    @property
    def number(self) -> int:
        """The state's number."""
        return ((self.row * 5 + self.column) * 5 + self.passenger) * 4 + self.destination

    @property
    def target(self) -> tuple[int, int]:
        """The next cell to reach: the passenger's, or the destination if the passenger is aboard."""
        return LANDMARKS[self.destination if self.passenger == ABOARD else self.passenger]


class Effect(NamedTuple):
    """The effect of an action: the next state, Gym's reward, and whether the passenger was delivered."""

    state: int
    reward: int
    delivered: bool


def place(state: int) -> Place:
    """Decode a state."""
    rest, destination = divmod(state, 4)
    rest, passenger = divmod(rest, 5)
    return Place(*divmod(rest, 5), passenger, destination)


def is_open(row: int, column: int, action: int) -> bool:
    """Whether a taxi in this cell can make this move: no wall or edge blocks it."""
    if action in (SOUTH, NORTH):
        return row < 4 if action == SOUTH else row > 0
    return _PLAN[row + 1][2 * column + (2 if action == EAST else 0)] == ":"


@cache
def moves() -> tuple[tuple[Effect, ...], ...]:
    """The effect of each of the 6 actions in each of the 500 states."""
    return tuple(tuple(_move(place(state), action) for action in range(6)) for state in range(STATES))


def _move(here: Place, action: int) -> Effect:
    row, column, passenger, destination = here
    landmark = LANDMARKS.index((row, column)) if (row, column) in LANDMARKS else None
    if action == PICK_UP:
        if landmark is None or landmark != passenger:
            return Effect(here.number, ILLEGAL, False)
        return Effect(here._replace(passenger=ABOARD).number, STEP, False)
    if action == DROP_OFF:
        if landmark is None or passenger != ABOARD:
            return Effect(here.number, ILLEGAL, False)
        delivered = landmark == destination  # dropping off is legal at any landmark, not only at the destination
        return Effect(here._replace(passenger=landmark).number, DELIVERY if delivered else STEP, delivered)
    if is_open(row, column, action):
        row += {SOUTH: 1, NORTH: -1}.get(action, 0)
        column += {EAST: 1, WEST: -1}.get(action, 0)
    return Effect(here._replace(row=row, column=column).number, STEP, False)


@cache
def starts() -> tuple[int, ...]:
    """The 300 start states, ascending: the passenger waits at a landmark other than the destination."""
    return tuple(state for state in range(STATES) if ABOARD != place(state).passenger != place(state).destination)


@cache
def picture(state: int) -> str:
    """The 7-row map. Later symbols cover earlier ones: D, then P, then the taxi as T, O (on P) or X (with P aboard).

    The destination is therefore invisible while the taxi is on it.
    """
    row, column, passenger, destination = place(state)
    cells = {LANDMARKS[destination]: "D"}
    taxi = "X"
    if passenger != ABOARD:
        cells[LANDMARKS[passenger]] = "P"
        taxi = "O" if (row, column) == LANDMARKS[passenger] else "T"
    cells[row, column] = taxi
    rows = [list(line) for line in _PLAN]
    for i in range(5):
        for j in range(5):
            rows[i + 1][2 * j + 1] = cells.get((i, j), " ")
    return "\n".join("".join(line) for line in rows)


@cache
def distances() -> tuple[int, ...]:
    """The number of actions from each state to the delivery, inclusive, by one backward breadth-first search."""
    before: list[list[int]] = [[] for _ in range(STATES)]
    frontier: list[int] = []
    for state, row in enumerate(moves()):
        for move in row:
            if move.delivered:
                frontier.append(state)
            elif move.state != state:
                before[move.state].append(state)
    found = [0] * STATES
    steps = 1
    while frontier:
        for state in frontier:
            found[state] = steps
        steps += 1
        frontier = list({earlier for state in frontier for earlier in before[state] if not found[earlier]})
    return tuple(found)


def best_action(state: int) -> int:
    """The first action of a shortest path to the delivery; ties go to the lowest action, as in a forward search."""
    table, distance = moves()[state], distances()
    if distance[state] == 1:
        return DROP_OFF
    return next(action for action in range(6) if distance[table[action].state] == distance[state] - 1)


def best_actions(state: int, *, until_aboard: bool = False) -> list[int]:
    """A shortest path to the delivery; ``until_aboard``: only up to the pickup ([] if the passenger is aboard)."""
    actions = []
    while not (until_aboard and place(state).passenger == ABOARD):
        action = best_action(state)
        actions.append(action)
        state, _, delivered = moves()[state][action]
        if delivered:
            break
    return actions
