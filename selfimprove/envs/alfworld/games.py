"""Sources of ALFWorld's games: generated from a number, or read from the downloaded set's folder without changing it.

In the downloaded set (``alfworld-download``), each game is a folder::

    json_2.1.1/train/pick_heat_then_place_in_recep-Egg-None-Fridge-13/trial_T20190908_.../
        traj_data.json  initial_state.pddl  game.tw-pddl

Only the problem and the task's sentence are used. The original skips games about sliced or containing objects, and
games that its own planner did not solve; where ``game.tw-pddl`` is missing, it writes one into the set. Here
``initial_state.pddl`` is read instead.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json, load_object
from selfimprove.core.seeds import rng
from selfimprove.envs.alfworld.kitchen_games import NumberedGames, check_split, no_game
from selfimprove.envs.alfworld.kitchen_things import KINDS, SENTENCES, Goal, Kind
from selfimprove.envs.alfworld.pddl import problem

TYPES: Mapping[str, Kind] = {
    "pick_and_place_simple": "pick_and_place",
    "look_at_obj_in_light": "look_in_light",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "pick_two",
}
"""ALFWorld's names of the six task types, and ours."""

_SENTENCE = re.compile(r"Your task is to: ([^\"\\\n#{}\[\]|]{1,200}?)\.(?=[\"\\\n]|$)")  # in a game's grammar
_SLICED_OR_MOVED = re.compile(r"movable|Sliced")  # anywhere in the path, as in the original


@dataclass(frozen=True)
class AlfGame:
    """One game: its id in logs and on the blacklist, its goal and sentence, its PDDL problem."""

    id: str
    goal: Goal
    sentence: str
    problem: str


class GeneratedGames:
    """The built-in kitchen's games, with the same numbers, in ALFWorld's format."""

    def __init__(self, seed: int, kinds: Sequence[Kind], thing: str | None, place: str | None) -> None:
        """Raises: as ``NumberedGames``."""
        self._games = NumberedGames("alfworld", seed, kinds, thing, place)
        self._seed, self._asked = seed, "".join(f"-{word}" for word in (thing, place) if word)

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """The games' numbers: all, those for training (``train``) or those for testing (``valid``).

        Raises:
            UserError: no such split.
        """
        return self._games.task_ids(split)

    def id(self, task: int) -> str:
        """The game's id in logs and on the blacklist."""
        return f"kitchen-{self._seed}-{task}{self._asked}"

    def game(self, task: int) -> AlfGame:
        """The game of a number. Raises: UserError: there is none."""
        game = self._games.game(task)
        return AlfGame(self.id(task), game.goal, game.sentence, problem(game))


class DownloadedGames:
    """The games in a folder, numbered in the order of their paths; the folder is never written to."""

    def __init__(
        self, folder: Path, kinds: Sequence[Kind] = KINDS, thing: str | None = None, place: str | None = None
    ) -> None:
        """Search the folder for games.

        Raises:
            UserError: it cannot be read, or contains no games, or none with these kinds, this thing and this place.
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: not a folder; name the one that alfworld-download filled, or set null.")
        self.folder = folder
        found = sorted(
            os.path.relpath(place_, folder)
            for place_, _, files in os.walk(folder)
            if "traj_data.json" in files and {"game.tw-pddl", "initial_state.pddl"} & set(files)
        )
        if not found:
            raise UserError(
                f"{folder}: contains no ALFWorld games (folders with traj_data.json and game.tw-pddl or "
                "initial_state.pddl); name the folder that alfworld-download filled."
            )
        self._found: list[tuple[str, Goal]] = []
        for path in found:
            goal = None if _SLICED_OR_MOVED.search(path) else _goal(folder / path)
            asked = goal is not None and goal.kind in kinds and thing in (None, goal.thing)
            if goal is not None and asked and place in (None, goal.place) and _solvable(folder / path):
                self._found.append((path, goal))
        if not self._found:
            raise UserError(f"{folder}: {no_game(kinds, thing, place)}")

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """See ``GeneratedGames``. ``valid``: the folders valid_seen and valid_unseen; ``train``: all others."""
        check_split("alfworld", split)
        return [
            task
            for task, (path, _) in enumerate(self._found)
            if split is None or (split == "valid") == any(part.startswith("valid") for part in Path(path).parts)
        ]

    def id(self, task: int) -> str:
        return Path(self._found[task][0]).as_posix() if 0 <= task < len(self._found) else str(task)

    def game(self, task: int) -> AlfGame:
        if not 0 <= task < len(self._found):
            raise UserError(f"{self.folder}: there is no game {task!r}; choose one from 0 to {len(self._found) - 1}.")
        path, goal = self._found[task]
        made = load_object(self.folder / path / "game.tw-pddl")
        text = made.get("pddl_problem")
        if not isinstance(text, str):
            text = _text(self.folder / path / "initial_state.pddl")
        match = _SENTENCE.search(str(made.get("grammar", "")))
        chance = rng("alfworld sentence", path)
        sentence = chance.choice(SENTENCES[goal.kind]).format(thing=goal.thing, place=goal.place)
        return AlfGame(self.id(task), goal, match[1] if match else sentence, text)


class Blacklist:
    """Games that crashed: id -> reason. Stored in a file if one is given, so that later runs skip them."""

    def __init__(self, path: Path | None = None, games: Path | None = None) -> None:
        """Raises: UserError: the file is not a blacklist, or would be inside the games' folder."""
        self._path, self.reasons = path, dict[str, str]()
        if path is None:
            return
        if games is not None and path.resolve().is_relative_to(games.resolve()):
            raise UserError(f"{path}: the blacklist must not be inside the game set ({games}); name another file.")
        self.reasons = _blacklisted(path)

    def add(self, game: str, reason: str) -> None:
        """Add a game, and write the file immediately, with what other processes have added to it in the meantime.

        Raises:
            UserError: the file is no longer a blacklist.
        """
        self.reasons[game] = reason
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            whole = _blacklisted(self._path) | self.reasons
            new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            new.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n", encoding="utf-8")
            os.replace(new, self._path)


def _blacklisted(path: Path) -> dict[str, str]:
    """Game -> reason, in a blacklist's file; {} if it does not exist. Raises: UserError: it is not a blacklist."""
    if not path.exists():
        return {}
    value = load_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a blacklist (a JSON object that maps games to reasons); fix or delete it.")
    return {str(key): str(reason) for key, reason in value.items()}


def make_games(
    folder: Path | None, seed: int, kinds: Sequence[Kind], thing: str | None, place: str | None
) -> GeneratedGames | DownloadedGames:
    """The games of a folder, or generated ones without a folder. A folder is searched once per process.

    Raises:
        UserError: as ``GeneratedGames`` and ``DownloadedGames``.
    """
    if folder is None:
        return GeneratedGames(seed, kinds, thing, place)
    return _downloaded(folder, tuple(kinds), thing, place)


@lru_cache(maxsize=4)
def _downloaded(folder: Path, kinds: tuple[Kind, ...], thing: str | None, place: str | None) -> DownloadedGames:
    return DownloadedGames(folder, kinds, thing, place)


def _goal(folder: Path) -> Goal | None:
    """A game's goal; None if it is of none of the six types."""
    data = load_object(folder / "traj_data.json")
    kind, wanted = TYPES.get(str(data.get("task_type"))), data.get("pddl_params")
    if kind is None or not isinstance(wanted, dict) or wanted.get("object_sliced"):
        return None
    target = wanted.get("toggle_target") if kind == "look_in_light" else wanted.get("parent_target")
    return Goal(kind, str(wanted.get("object_target", "")).lower(), str(target or "").lower())


def _solvable(folder: Path) -> bool:
    """False if the set records that its planner failed; games without a ``game.tw-pddl`` are tried."""
    return load_object(folder / "game.tw-pddl").get("solvable") is not False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise UserError(f"{path}: cannot be read as text; download the game set again.") from None
