"""DangerousTaxi with labels, levels and a teacher that explains but never names the action (docs/reflect-rl.md, L41).

The teacher's reflection at start 61 (see ``env.py``) after a first move to the south, which was wrong::

    The last step led away. Two rows north lies the passenger.

and at start 15, if it had been reached by a good move::

    The last step helped. Three columns east lies the passenger, but a wall stands in the east; it ends two rows south.

The sentences state where the target is, which directions are blocked and where the wall ends. The next action follows
from this but is never named: the teacher's knowledge of it (the spoiler) does not enter the training data.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import Last, Played, State
from selfimprove.envs.taxi.env import ACTION_LIST, LABELS, RULES, Mode, Taxi, TaxiSnapshot, read_action, succeeded
from selfimprove.envs.taxi.grid import ABOARD, ACTIONS, EAST, NORTH, SOUTH, WEST, distances, is_open, moves, place
from selfimprove.envs.taxi.words import where

LEVELS: tuple[Mode, ...] = ("pickup", "dropoff", "full")
"""The curriculum (docs/reflect-rl.md, L25)."""

INSTRUCTION = (
    "You drive a taxi T on a grid to the passenger P, then, seen as X, to the destination D, never into a wall.\n"
)

_HELPED = ("The last step helped.", "That brought the taxi nearer.", "So far so good.")
_WRONG = ("The last step led away.", "That was a detour.", "The last step did not help.")
_HERE = ("The passenger waits right here.", "The taxi stands where the passenger waits.")
_ARRIVED = ("This is the destination, and the passenger is aboard.", "With the passenger aboard, D is reached.")
_LIES = ("The {target} is {where}", "{where} lies the {target}", "From here the {target} is {where}")


_MARKS = re.compile(r"[*`\"'()\[\]]")
"""Markup that chat models put around words: **Action:** (1)."""
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])[-:]\s*(?=[A-Za-z])")
"""MOVE-SOUTH, Next move: south."""
_DISTANCE = (
    r"(?: (?:the taxi|the passenger|it|them))?"
    r"(?: (?:a|an|one|two|three|four|\d|another|steps?|cells?|squares?|rows?|columns?|further|more|straight|directly|"
    r"down|up|to|towards?|the|in|direction|of)){0,8}?"
)
"""Words between a verb and a direction: go two cells further to the north, move the taxi 2 rows south."""
_VERBS = (
    r"(?:be moved|be driven|mov(?:es?|ing)|go(?:es|ing)?|driv(?:es?|ing)|(?:head|steer|turn|travel|proceed)(?:s|ing)?|"
    r"travelling|continu(?:es?|ing)|(?<!a )(?<!one )(?<!1 )step(?:ping)?|tak(?:e|ing) (?:a|one|another) step)"
    rf"(?:(?: \w+){{0,2}}?|{_DISTANCE})"
)
"""What to do next; the past tense describes the last action, which the state shows: it moved the taxi south."""
_BEST = r"(?:best|next|right|correct) (?:action|direction|move|step|way)(?: is| would be| should be)?(?: to)?(?: the)?"
_NUMBER = (
    r"(?:action|answer|option|choice|label|choos(?:e|ing)|pick(?:ing)?|select(?:ing)?)"
    r"(?: (?:number|no\.?|is|would be|should be))*[ :#]*"
)
_TELLS = [
    re.compile(rf"\b(?:{words}|{_NUMBER}{number})\b", re.IGNORECASE)
    for number, words in enumerate(
        (
            *(
                rf"(?:{_VERBS}|{_BEST}|tak(?:e|ing)) {compass}(?:ward|wards)?|{compass} is the (?:best|right|way)"
                for compass in ("south", "north", "east", "west")
            ),
            r"pick(?:s|ing|ed)?[ -]?(?:\w+ ){0,2}?up|pickup|collect(?:ing)? (?:the passenger|them)|"
            r"tak(?:e|ing) (?:the passenger|them) aboard",
            r"drop(?:s|ping|ped)?[ -]?(?:\w+ ){0,2}?off|dropoff",
        )
    )
]


class LevelSnapshot(NamedTuple):
    level: Mode
    game: TaxiSnapshot


class EnumeratedTaxi:
    """Implements ``EnumeratedEnv``. ``mode``: the default level.

    The labels are always 0 to 5, in order: shuffle_action is ignored, as in the original.
    """

    name = "taxi"
    instruction = INSTRUCTION
    rules = RULES
    decisive = ""
    labels = LABELS

    def __init__(self, mode: Mode = "full", max_turns: int = 15, with_history: bool = False, level: int = -1) -> None:
        """``level``: index of the curriculum's only level; -1: all. Raises: UserError: bad mode, level or max_turns."""
        if level >= len(LEVELS):
            raise UserError(f"reflect_rl.env.curriculum_index: taxi has the levels 0 to 2, not {level}; choose one.")
        self.levels: tuple[str, ...] = LEVELS if level < 0 else LEVELS[level : level + 1]
        self.max_turns = max_turns
        self._games = {name: Taxi(name, max_turns, with_history) for name in (*LEVELS, "none")}
        self._default: Mode = mode if level < 0 else LEVELS[level]
        self._level: Mode = self._default
        self._moment = self._games[mode].snapshot()

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """The 300 starts; there are no splits here, because the method draws them."""
        return self._games["full"].task_ids()

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """All tasks: every start can be played at every level."""
        self._mode(level)
        return list(tasks)

    def _mode(self, level: str) -> Mode:
        mode: Mode | None = next((name for name in self._games if name == level), None)
        if level and mode is None:
            raise UserError(f"taxi has no level {level!r}; choose one of {', '.join(self._games)}.")
        return mode or self._default

    @property
    def _game(self) -> Taxi:
        game = self._games[self._level]
        game.restore(self._moment)
        return game

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """See ``EnumeratedEnv``; nothing is random here, so ``episode`` has no effect."""
        self._level = self._mode(level)
        self._games[self._level].reset(task_id)
        self._moment = self._games[self._level].snapshot()
        return self.state()

    def state(self) -> State:
        return State(self._game.observation, ACTION_LIST, () if self._moment.ending else LABELS)

    def commands(self) -> dict[str, str]:
        return {} if self._moment.ending else dict(zip(LABELS, ACTIONS, strict=True))

    def named(self, text: str) -> str | None:
        """The command that ``step`` performs for a text; None if there is none."""
        action = None if self._moment.ending else read_action(text)
        return None if action is None else ACTIONS[action]

    def step(self, label: str) -> Played:
        """See ``EnumeratedEnv``; success is determined by Q₀, or by the delivery if there is no curriculum."""
        if self._moment.ending:
            return Played(0.0, True, self._success(), False, "")
        game = self._game
        step = game.step(label)
        self._moment = game.snapshot()
        return Played(step.info["cost"], step.done, self._success(), step.info["valid"], step.observation)

    def _success(self) -> bool:
        now = self._moment
        delivered = now.ending == "success" and self._level != "pickup"
        return bool(now.ending) and succeeded(self._level, -now.score, delivered)

    def oracle(self) -> list[str]:
        return [ACTIONS[action] for action in self._game.oracle()]

    def explain(self, last: Last | None, *key: object) -> str:
        """Where the target is and what is in the way; after the first step also whether the last action helped."""
        words = rng("taxi reflection", *key)
        said = [] if last is None else [words.choice(_HELPED if last.helped else _WRONG)]
        here = place(self._moment.states[-1])
        if (here.row, here.column) == here.target:
            said.append(words.choice(_ARRIVED if here.passenger == ABOARD else _HERE))
        else:
            down, right = here.target[0] - here.row, here.target[1] - here.column
            target = "destination" if here.passenger == ABOARD else "passenger"
            sentence = words.choice(_LIES).format(target=target, where=where(down, right))
            said.append(sentence[0].upper() + sentence[1:] + obstacles(here.number) + ".")
        return " ".join(said)

    def reveals(self, text: str) -> bool:
        """See ``EnumeratedEnv``: by the action's words or its number; the target's position may be revealed."""
        way = self._game.oracle()
        plain = _BETWEEN_WORDS.sub(" ", " ".join(_MARKS.sub("", text).split()))
        return bool(way) and (plain.rstrip(".") == str(way[0]) or bool(_TELLS[way[0]].search(plain)))

    def snapshot(self) -> LevelSnapshot:
        """Only numbers and strings; hashable."""
        return LevelSnapshot(self._level, self._moment)

    def restore(self, snapshot: LevelSnapshot) -> None:
        self._level, self._moment = snapshot

    def copy(self) -> EnumeratedTaxi:
        """See ``EnumeratedEnv``; the games can be shared, because their state is restored before each use."""
        return copy.copy(self)


_COMPASS = {SOUTH: "south", NORTH: "north", EAST: "east", WEST: "west"}


def obstacles(state: int) -> str:
    """What prevents a direct path to the target: blocked directions, and those that lead behind a wall; or "".

    Together with ``where`` this determines a shortest path without naming it.
    """
    here = place(state)
    down, right = here.target[0] - here.row, here.target[1] - here.column
    nearer = [a for a, yes in ((SOUTH, down > 0), (NORTH, down < 0), (EAST, right > 0), (WEST, right < 0)) if yes]
    blocked = [action for action in nearer if not is_open(here.row, here.column, action)]
    astray = [
        action
        for action in nearer
        if action not in blocked and distances()[moves()[state][action].state] >= distances()[state]
    ]
    said = "".join(f", but a wall stands in the {_COMPASS[action]}" for action in blocked)
    said += "".join(f", but the {_COMPASS[action]} leads behind a wall" for action in astray)
    if len(blocked) + len(astray) == len(nearer):  # the only path is through the middle row, which has no walls
        rows = 2 - here.row
        said += f"; it ends {where(rows, 0)}" if rows else ""
    return said
