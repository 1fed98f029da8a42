"""A text kitchen in ALFWorld's format (Shridhar et al. 2021), built in: six kinds of goals, thousands of games.

An episode (game 693 of seed 0, played by the expert; long lines are broken)::

    -= Welcome to TextWorld, ALFRED! =-

    You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, a
    coffeemachine 1, a countertop 1, a diningtable 1, a drawer 1, a fridge 1, a garbagecan 1, a microwave 1, a
    sinkbasin 1, a stoveburner 2, and a stoveburner 1.

    Your task is to: heat some plate and put it in cabinet.
    Thought: A plate may be at the fridge 1, so I go there.
    Action: go to fridge 1
    You arrive at fridge 1. The fridge 1 is closed.
    Thought: I open the fridge 1.
    Action: open fridge 1
    You open the fridge 1. The fridge 1 is open. In it, you see a plate 1, and a winebottle 1.
    Thought: Here is a plate, so I take it.
    Action: take plate 1 from fridge 1
    You pick up the plate 1 from the fridge 1.
    Thought: I have the plate, so I take it to the microwave 1.
    Action: go to microwave 1
    You arrive at microwave 1. The microwave 1 is closed.
    Thought: I heat the plate in the microwave 1.
    Action: heat plate 1 with microwave 1
    You heat the plate 1 using the microwave 1.
    Thought: With the plate in hand I walk to the cabinet 2.
    Action: go to cabinet 2
    You arrive at cabinet 2. The cabinet 2 is closed.
    Thought: The cabinet 2 is closed, so I open it.
    Action: open cabinet 2
    You open the cabinet 2. The cabinet 2 is open. In it, you see nothing.
    Thought: I leave the plate here.
    Action: move plate 1 to cabinet 2
    You move the plate 1 to the cabinet 2.

The rules and the wording are those of ALFWorld 0.4 (``kitchen_rules.py``). A step takes microseconds instead of
ALFWorld's 50 to 190 ms, and every game is generated from its number alone. Reaching the goal gives reward 1 and ends
the episode; every other step has reward 0 and no cost (docs/reflect-rl.md, L43).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.alfworld.kitchen_expert import plan, thoughts
from selfimprove.envs.alfworld.kitchen_games import KitchenGame, NumberedGames, Split
from selfimprove.envs.alfworld.kitchen_rules import Deed, Scene, command, deeds, do, first_scene, is_won, look
from selfimprove.envs.alfworld.kitchen_things import KINDS, Kind
from selfimprove.envs.interface import Move, Step

Ending = Literal["", "success", "max_turns"]

MAX_TURNS = 15

INSTRUCTION = """\
You are in a kitchen and have a task. You can carry one object at a time. Actions:
go to {place} · open {place} · close {place} · examine {object in hand, or place}
take {object} from {place} · move {object} to {place} · use {lamp}
clean {object} with {sinkbasin} · heat {object} with {microwave} · cool {object} with {fridge}
slice {object} with {knife} · look · inventory · help
Objects and places are named with their numbers, as in: take mug 1 from shelf 2
Answer each time with a thought and one action:
Thought: why
Action: the action"""


class KitchenSnapshot(NamedTuple):
    """A snapshot: the game, its scene, the number of actions taken, and how it ended."""

    task: int
    scene: Scene
    steps: int
    ending: Ending


class Kitchen:
    """The environment; copies share only the games, which are immutable.

    ``kinds``: the kinds of goals; ``thing``, ``place``: fix the goal's thing and place, like the paper's tomato in the
    microwave; ``max_turns``: the episode is cut after this many actions.
    """

    name = "kitchen"
    instruction = INSTRUCTION

    def __init__(
        self,
        seed: int = 0,
        kinds: Sequence[Kind] = KINDS,
        thing: str | None = None,
        place: str | None = None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        """Raises: UserError: no such kind, no goal with that thing and place, or max_turns below 1."""
        self._games = NumberedGames("kitchen", seed, kinds, thing, place)
        if max_turns < 1:
            raise UserError(f"kitchen: max_turns must be at least 1, not {max_turns}.")
        self._max_turns = max_turns
        self._game = self._games.game(self.task_ids()[0])
        self._now = KitchenSnapshot(self._game.task, first_scene(self._game), 0, "")

    def task_ids(self, split: Split | None = None) -> Sequence[int]:
        """The games' numbers; ``valid`` has different kitchens from ``train``. Raises: UserError: no such split."""
        return self._games.task_ids(split)

    def reset(self, task_id: int) -> str:
        """Start in the middle of the room; returns what can be seen, and the task.

        Raises:
            UserError: no such game.
        """
        game = self._games.game(task_id)
        self.restore(KitchenSnapshot(task_id, first_scene(game), 0, ""))
        room = look(game, first_scene(game))
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {game.sentence}."

    def step(self, action: str) -> Step:
        """Execute one of ``valid_actions``; any other action only uses up a turn ("Nothing happens.").

        After the end, actions have no effect.
        """
        now, game = self._now, self._game
        if now.ending:
            return self._answer("Nothing happens.", valid=False)
        deed = _commands(game, now.scene).get(action.strip())
        scene, observation = now.scene, "Nothing happens."
        if deed is not None:
            scene, observation = do(game, scene, deed)
        ending: Ending = "success" if is_won(game, scene) else "max_turns" if now.steps + 1 >= self._max_turns else ""
        self._now = KitchenSnapshot(now.task, scene, now.steps + 1, ending)
        return self._answer(observation, valid=deed is not None)

    def _answer(self, observation: str, valid: bool) -> Step:
        won, late = self._now.ending == "success", self._now.steps >= self._max_turns
        info = {"raw_score": float(won), "valid": valid, "disaster": False, "terminated": won, "truncated": late}
        return Step(observation, float(won), bool(self._now.ending), info)

    def snapshot(self) -> KitchenSnapshot:
        """Hashable; numbers only."""
        return self._now

    def restore(self, snapshot: KitchenSnapshot) -> None:
        self._now = snapshot
        self._game = self._games.game(snapshot.task)

    def valid_actions(self) -> list[str]:
        """The admissible commands, in ALFWorld's order; [] at the end."""
        return [] if self._now.ending else list(_commands(self._game, self._now.scene))

    def oracle(self) -> list[str]:
        """A shortest path of commands to the goal, whether or not max_turns allows it; [] at the end."""
        return [command(self._game, deed) for deed in self._plan()]

    def expert(self) -> list[Move]:
        """``oracle`` with a reason for each command; [] if it takes more actions than remain."""
        way = self._plan()
        if len(way) > self._max_turns - self._now.steps:
            return []
        said = thoughts(self._game, way)
        return [Move(thought, command(self._game, deed)) for thought, deed in zip(said, way, strict=True)]

    def _plan(self) -> list[Deed]:
        return [] if self._now.ending else plan(self._game, self._now.scene)


@lru_cache(maxsize=1 << 12)
def _commands(game: KitchenGame, scene: Scene) -> dict[str, Deed]:
    """Every admissible command, sorted, with its deed; cached because each step needs it before and after."""
    return dict(sorted((command(game, deed), deed) for deed in deeds(game, scene)))
