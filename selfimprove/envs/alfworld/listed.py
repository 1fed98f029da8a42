"""ALFWorld with labels: the built-in kitchen, or real games behind the same interface (docs/reflect-rl.md, L42).

What the teacher says in the episode of ``kitchen.py`` on arriving at the fridge, and had it gone elsewhere::

    That helped. I open the fridge 1.
    The last command did not help. A plate may be at the fridge 1, so I go there.

It is shown no spoiler: it says what a player hopes to find.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_state import ACTION_HEADING, action_list, state_text
from selfimprove.envs.interface import AgentEnv, Last, Played, State
from selfimprove.envs.labels import LABELS

if TYPE_CHECKING:
    from selfimprove.envs.enumerated_params import EnvParams

_HELPED = ("That helped.", "So far so good.", "One step is done.")
_WRONG = ("The last command did not help.", "That brought nothing.", "That was not needed.")
_WELCOME = "-= Welcome"


class PlannedGame(AgentEnv, Protocol):
    """An environment that lists its admissible commands and knows a shortest path: the kitchen, or ALFWorld itself."""

    def task_ids(self, split: Any = None) -> Sequence[int]:
        """The games to learn in (``train``), to be tested in (``valid``), or all (None)."""
        ...

    def oracle(self) -> list[str]:
        """The fewest commands to the goal from here, whether or not the horizon allows them; [] at the end."""
        ...


class _Moment(NamedTuple):
    task: int
    episode: int
    first: str
    path: tuple[tuple[str, str], ...]
    steps: int
    ended: bool
    won: bool
    game: Any


class EnumeratedKitchen:
    """Implements ``EnumeratedEnv`` over games in ALFWorld's words; a win costs -1, everything else nothing.

    ``game`` should have no shorter horizon of its own, so that it can explain any path.
    """

    name = "alfworld"
    instruction = ""
    heading = ACTION_HEADING
    levels: tuple[str, ...] = ("",)

    def __init__(
        self, game: PlannedGame, horizon: int, labels: Sequence[str], shuffle_action: bool = False, seed: int = 0
    ) -> None:
        self._game = game
        self.horizon, self.labels = horizon, tuple(labels)
        self._shuffle_action, self._seed = shuffle_action, seed
        self._now = _Moment(-1, 0, "", (), 0, True, False, None)

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """See ``EnumeratedEnv``."""
        return self._game.task_ids(split)

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """See ``EnumeratedEnv``: there are no levels."""
        if level:
            raise UserError(f"alfworld has no level {level!r}; leave the levels out.")
        return list(tasks)

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """See ``EnumeratedEnv``."""
        self.level_tasks(level, ())
        first = self._game.reset(task_id)
        if first.startswith(_WELCOME):
            first = first.partition("\n\n")[2]
        self._now = _Moment(task_id, episode, first, (), 0, False, False, self._game.snapshot())
        return self.state()

    def state(self) -> State:
        """See ``EnumeratedEnv``."""
        labelled = self.commands()
        return State(state_text(self._now.first, self._now.path), action_list(labelled.items()), tuple(labelled))

    def commands(self) -> dict[str, str]:
        """The i-th admissible command has label i; ``shuffle_action`` permutes the first n, listed by label."""
        now = self._now
        if now.ended:
            return {}
        self._game.restore(now.game)
        commands = list(self._game.valid_actions() or [])[: len(self.labels)]
        if self._shuffle_action:
            rng("alfworld labels", self._seed, now.task, now.episode, now.steps).shuffle(commands)
        return dict(zip(self.labels, commands, strict=False))

    def step(self, label: str) -> Played:
        """See ``EnumeratedEnv``; an invalid label leaves the state as it was, but time passes."""
        now = self._now
        if now.ended:
            return Played(0.0, True, now.won, False, "")
        command = self.commands().get(label)
        output, won, game, path, gone = "Nothing happens.", False, now.game, now.path, False
        if command is not None:
            self._game.restore(now.game)
            step = self._game.step(command)
            output, won, game = step.observation, step.reward == 1, self._game.snapshot()
            path, gone = (*now.path, (command, output)), step.done
        late = now.steps + 1 >= self.horizon
        self._now = now._replace(path=path, steps=now.steps + 1, ended=won or late or gone, won=won, game=game)
        return Played(0.0 - won, self._now.ended, won, command is not None, output)

    def oracle(self) -> list[str]:
        """See ``EnumeratedEnv``."""
        if self._now.ended:
            return []
        self._game.restore(self._now.game)
        return self._game.oracle()

    def explain(self, last: Last | None, *key: object) -> str:
        """One sentence at the first step, two afterwards: whether the last command helped, and what is hoped for."""
        said = []
        if last is not None:
            said.append(rng("alfworld reflection", *key).choice(_HELPED if last.helped else _WRONG))
        if not self._now.ended:
            self._game.restore(self._now.game)
            said += [move.thought for move in self._game.expert()[:1]]
        return " ".join(said)

    def reveals(self, text: str) -> bool:
        """See ``EnumeratedEnv``: the teacher sees no spoiler here."""
        return False

    def snapshot(self) -> _Moment:
        """See ``EnumeratedEnv``."""
        return self._now

    def restore(self, snapshot: _Moment) -> None:
        """See ``EnumeratedEnv``."""
        self._now = snapshot

    def copy(self) -> EnumeratedKitchen:
        """See ``EnumeratedEnv``; the games are put into the moment before each use, so they can be shared."""
        return copy.copy(self)


def make_alfworld(params: EnvParams) -> EnumeratedKitchen:
    """The built-in kitchen, or ALFWorld itself, with the params' goals.

    Raises:
        UserError: no goal with that thing and place; ALFWorld's environment or its folder of games is missing.
    """
    horizon = 10_000  # the adapter cuts the episode; the game itself never does, so that it can explain any path
    game: PlannedGame
    if params.backend == "textworld":
        from selfimprove.envs.alfworld.env import make_textworld

        game = make_textworld(params, horizon)
    else:
        game = Kitchen(params.seed, params.kinds, params.thing, params.place, horizon)
    return EnumeratedKitchen(game, params.horizon, LABELS[params.labels], params.shuffle_action, params.seed)
