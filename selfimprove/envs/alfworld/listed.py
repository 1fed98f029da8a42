"""ALFWorld with labels: the built-in kitchen, or real games through the same interface (docs/reflect-rl.md, L42).

The teacher's text in the episode of ``kitchen.py`` on arriving at the fridge, and after going elsewhere::

    That helped. I open the fridge 1.
    The last command did not help. A plate may be at the fridge 1, so I go there.

It sees no spoiler: it states what a player hopes to find.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from selfimprove.envs.alfworld.kitchen import INSTRUCTION
from selfimprove.envs.interface import AgentEnv, State
from selfimprove.envs.listed import ListedText

_WELCOME = "-= Welcome"


class PlannedGame(AgentEnv, Protocol):
    """An environment with admissible commands and a shortest path: the kitchen, or ALFWorld itself."""

    def task_ids(self, split: Any = None) -> Sequence[int]:
        """The games for training (``train``), for testing (``valid``), or all (None)."""

    def oracle(self) -> list[str]:
        """A shortest path of commands to the goal, whether or not max_turns allows it; [] at the end."""


class EnumeratedKitchen(ListedText):
    """Games in ALFWorld's words; a win has cost -1, everything else cost 0. There is no instruction."""

    rules = INSTRUCTION.partition("\nAnswer each time")[0]
    helped = ("That helped.", "So far so good.", "One step is done.")
    wrong = ("The last command did not help.", "That brought nothing.", "That was not needed.")
    _game: PlannedGame

    def __init__(
        self, game: PlannedGame, max_turns: int, labels: Sequence[str], shuffle_action: bool = False, seed: int = 0
    ) -> None:
        super().__init__(game, max_turns, labels, shuffle_action, seed)
        self.name, self.instruction = "alfworld", ""

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        return self._game.task_ids(split)

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """See ``EnumeratedEnv``; the greeting is removed."""
        super().reset(task_id, episode, level)
        if self._now.first.startswith(_WELCOME):
            self._now = self._now._replace(first=self._now.first.partition("\n\n")[2])
        return self.state()

    def oracle(self) -> list[str]:
        """See ``EnumeratedEnv``; also defined when the game has no thought for the command."""
        if self._now.ended:
            return []
        self._game.restore(self._now.game)
        return self._game.oracle()
