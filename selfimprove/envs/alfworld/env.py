"""ALFWorld itself (Shridhar et al. 2021): its games run in its own interpreter, in a separate process.

An episode (game 3 of seed 0, played by its planner; the room's list is cut)::

    -= Welcome to TextWorld, ALFRED! =-

    You are in the middle of a room. Looking quickly around you, you see a cabinet 3, ..., and a stoveburner 1.

    Your task is to: put a hot potato in garbagecan.
    > go to fridge 1
    You arrive at fridge 1. The fridge 1 is closed.
    > open fridge 1
    You open the fridge 1. The fridge 1 is open. In it, you see a potato 1.
    > take potato 1 from fridge 1
    You pick up the potato 1 from the fridge 1.
    > go to microwave 1
    You arrive at microwave 1. The microwave 1 is closed.
    > heat potato 1 with microwave 1
    You heat the potato 1 using the microwave 1.
    > go to garbagecan 1
    You arrive at garbagecan 1. On the garbagecan 1, you see a lettuce 1.
    > move potato 1 to garbagecan 1
    You move the potato 1 to the garbagecan 1.

Observations and interface are the same as those of the built-in kitchen (``kitchen.py``). Games are the kitchen's own
or the downloaded set's (``games.py``). A game that crashes, hangs or cannot be started is blacklisted, which ends only
its own episode (docs/reflect-rl.md, L44).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from selfimprove.core.errors import UserError
from selfimprove.engines.cluster.config import in_use
from selfimprove.envs.alfworld.games import AlfGame, Blacklist, make_games
from selfimprove.envs.alfworld.kitchen import INSTRUCTION, MAX_TURNS, Ending
from selfimprove.envs.alfworld.kitchen_expert import thoughts
from selfimprove.envs.alfworld.kitchen_games import KitchenGame, Split
from selfimprove.envs.alfworld.kitchen_rules import Deed
from selfimprove.envs.alfworld.kitchen_things import KINDS, Kind
from selfimprove.envs.alfworld.process import AlfWorldProcess, GameFailed, LiveGame, ProcessGone
from selfimprove.envs.interface import EnvError, Move, Step

T = TypeVar("T")
LIVES = 64  # games that one environment keeps open in the process; states of others are reached by replaying


class AlfWorldSnapshot(NamedTuple):
    """A snapshot: the game, the actions so far (replayed to return here), the current commands, how it ended."""

    task: int
    first: str
    actions: tuple[str, ...]
    commands: tuple[str, ...]
    ending: Ending


class AlfWorld:
    """The environment; copies share the process and the blacklist, and each has its own games in the process.

    ``seed``, ``kinds``, ``thing``, ``place``, ``max_turns``: as in ``Kitchen``; ``folder``: the downloaded games,
    None for generated ones; ``process``, ``blacklist``: shared between copies.
    """

    name = "alfworld"
    instruction = INSTRUCTION

    def __init__(
        self,
        seed: int = 0,
        kinds: Sequence[Kind] = KINDS,
        thing: str | None = None,
        place: str | None = None,
        max_turns: int = MAX_TURNS,
        *,
        folder: Path | None = None,
        process: AlfWorldProcess | None = None,
        blacklist: Blacklist | None = None,
    ) -> None:
        """Raises: UserError: no such kind, no such game, max_turns below 1, or the folder is not a game set."""
        if max_turns < 1:
            raise UserError(f"alfworld: max_turns must be at least 1, not {max_turns}.")
        self._games = make_games(folder, seed, kinds, thing, place)
        self._max_turns = max_turns
        self._process = process if process is not None else AlfWorldProcess()
        self._blacklist = blacklist if blacklist is not None else Blacklist()
        self._lives: list[LiveGame] = []  # games in the process, most recently used last
        self._known: tuple[int, AlfGame] | None = None
        self._now: AlfWorldSnapshot | None = None

    def task_ids(self, split: Split | None = None) -> Sequence[int]:
        """The games' numbers, without blacklisted ones. Raises: UserError: no such split."""
        tasks = self._games.task_ids(split)
        black = self._blacklist.reasons
        return [task for task in tasks if self._games.id(task) not in black] if black else tasks

    def reset(self, task_id: int) -> str:
        """Start a game; returns the room and the task.

        Raises:
            UserError: no such game, or ALFWorld's environment is missing.
            EnvError: the game is blacklisted, or this call blacklisted it.
        """
        game = self._game(task_id)
        told = self._guarded(game, lambda: self._free().begin(task_id, game))
        self._now = AlfWorldSnapshot(
            task_id, told["text"], (), tuple(told["commands"]), "success" if told["won"] else ""
        )
        return str(told["text"])

    def step(self, action: str) -> Step:
        """Execute one of ``valid_actions``; any other action only uses up a turn ("Nothing happens.").

        Raises:
            EnvError: the game crashed or took too long, and is now blacklisted.
        """
        now = self._moment()
        if now.ending:
            return self._answer("Nothing happens.", valid=False)
        action = action.strip()
        valid, won, observation, commands = action in now.commands, False, "Nothing happens.", now.commands
        if valid:
            told = self._guarded(self._game(now.task), lambda: self._at(now).step(action))
            observation, commands, won = told["text"], tuple(told["commands"]), told["won"]
        actions = (*now.actions, action if valid else "")  # an invalid action changes nothing but counts as a turn
        ending: Ending = "success" if won else "max_turns" if len(actions) >= self._max_turns else ""
        self._now = AlfWorldSnapshot(now.task, now.first, actions, commands, ending)
        return self._answer(observation, valid)

    def _answer(self, observation: str, valid: bool) -> Step:
        now = self._moment()
        won = now.ending == "success"
        info = {
            "raw_score": float(won),
            "valid": valid,
            "disaster": False,
            "terminated": won,
            "truncated": len(now.actions) >= self._max_turns,
        }
        return Step(observation, float(won), bool(now.ending), info)

    def snapshot(self) -> AlfWorldSnapshot:
        """Hashable; strings only. Raises: as ``reset``, if no game was started."""
        return self._moment()

    def restore(self, snapshot: AlfWorldSnapshot) -> None:
        """See ``AgentEnv``. The actions are replayed when the next call needs it."""
        self._now = snapshot

    def valid_actions(self) -> list[str]:
        """The admissible commands, in ALFWorld's order; [] at the end."""
        now = self._moment()
        return [] if now.ending else list(now.commands)

    def oracle(self) -> list[str]:
        """The planner's path from here to the goal, whether or not max_turns allows it; [] if none or at the end.

        Planned from scratch at each call, so that it depends only on the current state.
        """
        now = self._moment()
        if now.ending:
            return []
        game = self._game(now.task)
        return list(self._guarded(game, lambda: self._at(now).plan()))

    def expert(self) -> list[Move]:
        """``oracle`` with a reason for each command; [] if it takes more actions than remain."""
        way, now = self.oracle(), self._moment()
        if len(way) > self._max_turns - len(now.actions):
            return []
        return [Move(*move) for move in zip(explained(self._game(now.task), way), way, strict=True)]

    def close(self) -> None:
        """Release this environment's games; the process continues for other copies."""
        for live in self._lives:
            live.close()
        self._lives.clear()

    def _game(self, task: int) -> AlfGame:
        if self._known is None or self._known[0] != task:
            self._known = task, self._games.game(task)
        return self._known[1]

    def _moment(self) -> AlfWorldSnapshot:
        if self._now is None:
            self.reset(self.task_ids()[0])
        assert self._now is not None
        return self._now

    def _at(self, now: AlfWorldSnapshot) -> LiveGame:
        """A game in the process, brought to this state."""
        done = [action for action in now.actions if action]
        near = [live for live in self._lives if live.follows(now.task, done)]
        if near:
            live = max(near, key=lambda live: len(live.actions))
            self._lives.remove(live)
            self._lives.append(live)
        else:
            live = self._free()
            live.begin(now.task, self._game(now.task))
        for action in done[len(live.actions) :]:
            live.step(action)
        return live

    def _free(self) -> LiveGame:
        """A game to start: a new one, or the least recently used one."""
        self._lives.append(LiveGame(self._process) if len(self._lives) < LIVES else self._lives.pop(0))
        return self._lives[-1]

    def _guarded(self, game: AlfGame, ask: Callable[[], T]) -> T:
        """Call ``ask``; if the process has died, once more in a new one. A second failure blacklists the game."""
        if game.id in self._blacklist.reasons:
            raise EnvError(f"alfworld: the game {game.id} is on the blacklist: {self._blacklist.reasons[game.id]}")
        reason: EnvError
        try:
            return ask()
        except GameFailed as error:
            reason = error
        except ProcessGone as error:
            reason = error
            if not error.late:
                try:
                    return ask()
                except (GameFailed, ProcessGone) as again:
                    reason = again
        self._blacklist.add(game.id, str(reason))
        raise EnvError(f"alfworld: the game {game.id} goes to the blacklist: {reason}") from None


def explained(game: AlfGame, way: Sequence[str]) -> list[str]:
    """A sentence for each command of a plan, as in the kitchen: what the player hopes for, not what is known."""
    things: list[str] = []
    receptacles: list[str] = []
    deeds = [_deed(command, things, receptacles) for command in way]
    return thoughts(KitchenGame(0, game.goal, game.sentence, tuple(receptacles), tuple(things), ()), deeds)


def _deed(command: str, things: list[str], receptacles: list[str]) -> Deed:
    """A command as the kitchen's ``Deed``; its names are added to the lists."""

    def at(names: list[str], name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    verb, *words = command.split()
    first, last = " ".join(words[:2]), " ".join(words[-2:])
    if verb in ("go", "open", "close"):
        return Deed(verb, receptacle=at(receptacles, last))
    if verb == "use":
        return Deed(verb, at(things, first))
    if verb == "slice":
        return Deed(verb, at(things, first), knife=at(things, last))
    if verb in ("take", "move", "clean", "heat", "cool"):
        return Deed(verb, at(things, first), at(receptacles, last))
    return Deed(verb)


@lru_cache(maxsize=1)
def shared_process(seconds: float) -> AlfWorldProcess:
    """The process shared by all copies created from params; with a Ray cluster, on one of its nodes."""
    cluster = in_use()
    if cluster.kind != "ray":
        return AlfWorldProcess(seconds=seconds)
    from selfimprove.envs.alfworld.hosted import HostedAlfWorldProcess

    return HostedAlfWorldProcess(cluster, seconds=seconds)
