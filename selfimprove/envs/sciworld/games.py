"""ScienceWorld's games and their numbers in AgentGym and Agent-R (needs no Java).

A task such as ``boil`` has variations (boil water, boil lead, …); a game is one variation of one task. AgentGym uses a
flat index over the tasks in the package's order, without seven long ones: 4,639 games ::

    0..29    boil          task number 0
    30..59   melt          task number 22
    60..89   freeze        task number 9
    …

Agent-R's collection uses task numbers: a task's alphabetical position among all thirty.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError

# Task id in the paper's table, name, number of variations; order and numbers as in scienceworld 1.2.3.
TASKS: tuple[tuple[str, str, int], ...] = (
    ("1-1", "boil", 30),
    ("1-2", "melt", 30),
    ("1-3", "freeze", 30),
    ("1-4", "change-the-state-of-matter-of", 30),
    ("2-1", "use-thermometer", 540),
    ("2-2", "measure-melting-point-known-substance", 436),
    ("2-3", "measure-melting-point-unknown-substance", 300),
    ("3-1", "power-component", 20),
    ("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
    ("3-3", "test-conductivity", 900),
    ("3-4", "test-conductivity-of-unknown-substances", 600),
    ("4-1", "find-living-thing", 300),
    ("4-2", "find-non-living-thing", 300),
    ("4-3", "find-plant", 300),
    ("4-4", "find-animal", 300),
    ("5-1", "grow-plant", 126),
    ("5-2", "grow-fruit", 126),
    ("6-1", "chemistry-mix", 32),
    ("6-2", "chemistry-mix-paint-secondary-color", 36),
    ("6-3", "chemistry-mix-paint-tertiary-color", 36),
    ("7-1", "lifespan-longest-lived", 125),
    ("7-2", "lifespan-shortest-lived", 125),
    ("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
    ("8-1", "identify-life-stages-1", 14),
    ("8-2", "identify-life-stages-2", 10),
    ("9-1", "inclined-plane-determine-angle", 168),
    ("9-2", "inclined-plane-friction-named-surfaces", 1386),
    ("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
    ("10-1", "mendelian-genetics-known-plant", 120),
    ("10-2", "mendelian-genetics-unknown-plant", 480),
)
EXCLUDED = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})


class TaskVariation(NamedTuple):
    """One variation of one task."""

    task: str
    variation: int


def _index() -> tuple[dict[int, range], tuple[TaskVariation, ...]]:
    """(task number -> its flat ids, the games in flat order)."""
    alphabet = sorted(name for _, name, _ in TASKS)
    ids: dict[int, range] = {}
    games: list[TaskVariation] = []
    for task_id, name, variations in TASKS:
        if task_id not in EXCLUDED:
            ids[alphabet.index(name)] = range(len(games), len(games) + variations)
            games += [TaskVariation(name, variation) for variation in range(variations)]
    return ids, tuple(games)


IDS_OF_NUMBER, GAMES = _index()

# In the order of Agent-R's collection: alphabetical, with number 0 last. `--min` and `--max` select a slice.
TASK_NUMBERS: tuple[int, ...] = (*(number for number in sorted(IDS_OF_NUMBER) if number), 0)


def game(task_id: int) -> TaskVariation:
    """The game with this flat index.

    Raises:
        UserError: no such game.
    """
    if not 0 <= task_id < len(GAMES):
        raise UserError(f"sciworld has no task {task_id}; choose an id from 0 to {len(GAMES) - 1}.")
    return GAMES[task_id]


def ids_of_task_numbers(
    start: int = 0, stop: int | None = None, task_iteration: int = 5, ids: Mapping[str, Sequence[int]] | None = None
) -> list[int]:
    """Agent-R's loop over task numbers: flat ids of the first ``task_iteration`` variations of each.

    Args:
        start, stop: a slice of ``TASK_NUMBERS``, like the original's ``--min`` and ``--max``.
        task_iteration: the number of variations of each task; fewer if a task has fewer.
        ids: task number (as text) -> flat ids to select from, a training list; None: all variations of the task.

    Unlike the original, this includes the first variation of every task.

    Raises:
        UserError: ``ids`` lacks one of the task numbers, or contains an id that does not exist.
    """
    chosen: list[int] = []
    for number in TASK_NUMBERS[start:stop]:
        if ids is not None and str(number) not in ids:
            raise UserError(
                f"the sciworld training list has no task number {number}; add the key {str(number)!r} with its ids, or "
                "narrow the slice of task numbers."
            )
        variations = IDS_OF_NUMBER[number] if ids is None else ids[str(number)]
        chosen += variations[: max(task_iteration, 0)]
    for task_id in chosen:
        game(task_id)
    return chosen


def ids_of_games(start: int, stop: int | None, variations: int, among: Sequence[int] | None) -> list[int]:
    """``ids_of_task_numbers``, restricted to the ids in ``among`` (None: all). Raises: UserError: as there."""
    listed = None
    if among is not None:
        given = {str(number): [i for i in among if i in ids] for number, ids in IDS_OF_NUMBER.items()}
        listed = {number: ids for number, ids in given.items() if ids}
    return ids_of_task_numbers(start, stop, variations, listed)
