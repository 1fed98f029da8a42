"""The kitchen's games: rooms, things and a goal, generated from a task's number alone (docs/reflect-rl.md, L43).

Game 4 of seed 0, for instance: "cool some plate and put it in microwave", with 11 things in 13 receptacles.
A game is immutable; the state during play is a ``Scene`` (``kitchen_rules.py``).
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.alfworld.kitchen_things import (
    HOLDS,
    KINDS,
    LAMP,
    LAMP_STANDS,
    OPENABLE,
    RECEPTACLES,
    SENTENCES,
    THINGS,
    Goal,
    Kind,
    goals,
)

Split = Literal["train", "valid"]
TRAIN, VALID = range(6000), range(6000, 6600)  # different kitchens for training and testing


@dataclass(frozen=True)
class KitchenGame:
    """One game. Receptacles and things are identified by their indices; ``first``: each thing's initial receptacle."""

    task: int
    goal: Goal
    sentence: str
    receptacles: tuple[str, ...]
    things: tuple[str, ...]
    first: tuple[int, ...]

    @cached_property
    def receptacle_kinds(self) -> tuple[str, ...]:
        """``fridge`` for ``fridge 1``."""
        return tuple(name.split()[0] for name in self.receptacles)

    @cached_property
    def thing_kinds(self) -> tuple[str, ...]:
        """``apple`` for ``apple 2``."""
        return tuple(name.split()[0] for name in self.things)

    def can_open(self, receptacle: int) -> bool:
        """Whether it has a door; all doors are closed at first."""
        return self.receptacle_kinds[receptacle] in OPENABLE

    def fits(self, thing: int, receptacle: int) -> bool:
        """Whether the thing may be put there."""
        return self.thing_kinds[thing] in HOLDS[self.receptacle_kinds[receptacle]]


def choices(task: int, thing: str | None, place: str | None) -> list[Goal]:
    """The possible goals of a task, restricted to ``thing`` and ``place`` if given."""
    return [
        goal for goal in goals(KINDS[task % len(KINDS)]) if thing in (None, goal.thing) and place in (None, goal.place)
    ]


@lru_cache(maxsize=1 << 12)
def make_game(seed: int, task: int, thing: str | None = None, place: str | None = None) -> KitchenGame:
    """The game of a task, identical for equal arguments in every process. ``thing``, ``place``: restrict the goal.

    Raises:
        UserError: no goal of this task's kind has that thing and place.
    """
    possible = choices(task, thing, place)
    if not possible:
        kind = KINDS[task % len(KINDS)]
        raise UserError(f"kitchen: no {kind} game has the thing {thing!r} and the place {place!r}; choose others.")
    chance = rng("kitchen", seed, task, thing, place)
    goal = chance.choice(possible)
    receptacles = _room(goal, chance)
    things = _things(goal, chance)
    first = []
    for thing_name in things:
        fit = [i for i, name in enumerate(receptacles) if _may_begin(thing_name.split()[0], name.split()[0], goal)]
        first.append(chance.choice(fit))
    words = chance.choice(SENTENCES[goal.kind]).format(thing=goal.thing, place=goal.place)
    return KitchenGame(task, goal, words, tuple(receptacles), tuple(things), tuple(first))


class NumberedGames:
    """The games of some kinds of goals; a game's kind is its number modulo 6."""

    def __init__(self, name: str, seed: int, kinds: Sequence[Kind], thing: str | None, place: str | None) -> None:
        """``name``: of the environment, for messages.

        Raises:
            UserError: there is no such kind, or no game has these kinds, this thing and this place.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"{name}: there is no kind of goal {kind!r}; choose one of {', '.join(KINDS)}.")
        self._kinds = [kind for number, kind in enumerate(KINDS) if kind in kinds and choices(number, thing, place)]
        if not self._kinds:
            raise UserError(f"{name}: {no_game(kinds, thing, place)}")
        self._name, self._seed, self._thing, self._place = name, seed, thing, place

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """The games' numbers; ``valid`` has different kitchens from ``train``. Raises: UserError: no such split."""
        check_split(self._name, split)
        tasks = {"train": TRAIN, "valid": VALID, None: range(TRAIN.start, VALID.stop)}[split]
        if len(self._kinds) == len(KINDS):
            return tasks
        return [task for task in tasks if KINDS[task % len(KINDS)] in self._kinds]

    def game(self, task: int) -> KitchenGame:
        """The game of a number. Raises: UserError: there is none."""
        if not 0 <= task < VALID.stop or KINDS[task % len(KINDS)] not in self._kinds:
            raise UserError(f"{self._name}: there is no game {task!r} of {', '.join(self._kinds)}; see task_ids().")
        return make_game(self._seed, task, self._thing, self._place)


def check_split(name: str, split: str | None) -> None:
    """Raises: UserError: there is no such split of the environment ``name``."""
    if split not in (None, *get_args(Split)):
        raise UserError(f"{name}: there is no split {split!r}; choose train or valid.")


def no_game(kinds: Sequence[Kind], thing: str | None, place: str | None) -> str:
    """The message that no game is left."""
    asked = f"thing {thing!r} and place {place!r}" if thing or place else f"kind ({', '.join(kinds)})"
    return f"no game has the requested {asked}; choose others."


def _room(goal: Goal, chance: random.Random) -> list[str]:
    """The receptacles' names in ALFWorld's order: by kind, then by descending number."""
    counts = {kind: chance.randint(*between) for kind, between in RECEPTACLES.items()}
    if goal.place in counts:
        counts[goal.place] = max(counts[goal.place], 1)
    return [f"{kind} {number}" for kind in sorted(counts) for number in range(counts[kind], 0, -1)]


def _things(goal: Goal, chance: random.Random) -> list[str]:
    """The things' names in the same order: what the goal needs, sometimes one more of it, and six to nine others."""
    counts = Counter({goal.thing: (2 if goal.kind == "pick_two" else 1) + (chance.random() < 0.3)})
    if goal.kind == "look_in_light":
        counts[LAMP] = 1
    for other in chance.sample(sorted(THINGS - {goal.thing}), chance.randint(6, 9)):
        counts[other] = 1 + (chance.random() < 0.2)
    return [f"{kind} {number}" for kind in sorted(counts) for number in range(counts[kind], 0, -1)]


def _may_begin(kind: str, where: str, goal: Goal) -> bool:
    """Things start where they fit; the goal's things not where they have to be brought."""
    if kind == LAMP:
        return where in LAMP_STANDS
    return kind in HOLDS[where] and not (kind == goal.thing and where == goal.place)
