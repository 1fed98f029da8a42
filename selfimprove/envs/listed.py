"""Adapter from ``AgentEnv`` to ``EnumeratedEnv``, for Reflect-RL: labels, costs, and reflections.

Listed actions get labels, an action's cost is the negative of what it adds to the episode's reward, and the expert's
next thought is the teacher's reflection. The text format is the original's for ALFWorld (docs/reflect-rl.md, L42)::

    You are in the middle of a room. Looking quickly around you, you see a fridge 1, and a sinkbasin 1.

    Your task is to: cool some mug and put it in sinkbasin.

    Here is the previous path:
    --- Step: 0 ---
    Action: go to fridge 1
    Observation: You arrive at fridge 1. The fridge 1 is closed.



    The actions you can take now is:
    Action 0: open fridge 1
    Action 1: look
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, CutState, Last, Played, State

ACTION_HEADING = "\nThe actions you can take now is:"  # verbatim from the original, including the grammar


def state_text(first: str, path: Sequence[tuple[str, str]]) -> str:
    """The state up to the heading. ``first``: the first observation; ``path``: (action, observation), oldest first."""
    steps = "".join(
        f"--- Step: {i} ---\nAction: {action}\nObservation: {observation}\n\n"
        for i, (action, observation) in enumerate(path)
    )
    return first + (f"\n\nHere is the previous path:\n{steps}" if path else "") + "\n"


def action_list(labelled: Iterable[tuple[str, str]]) -> str:
    """The heading and a line for each (label, command), in the given order."""
    return ACTION_HEADING + "\n" + "\n".join(f"Action {label}: {command}" for label, command in labelled)


def refuse_level(name: str, curriculum_index: int) -> None:
    """Refuse the choice of a level in an environment that has none. Raises: UserError."""
    if curriculum_index > 0:
        raise UserError(f"reflect_rl.env.curriculum_index: {name} has no levels; set -1.")


class ListedSnapshot(NamedTuple):
    task: int
    episode: int
    first: str
    path: tuple[tuple[str, str], ...]
    steps: int
    ended: bool
    reward: float
    game: Any


class ListedText:
    """Implements ``EnumeratedEnv``. ``game`` should not limit the number of turns itself: ``max_turns`` does so."""

    decisive = ""
    levels: tuple[str, ...] = ("",)
    helped: ClassVar[Sequence[str]] = ("The last action helped.", "That was right.")
    wrong: ClassVar[Sequence[str]] = ("The last action did not help.", "That was not needed.")

    def __init__(
        self,
        game: AgentEnv,
        max_turns: int,
        labels: Sequence[str],
        shuffle_action: bool = False,
        seed: int = 0,
        add_expert: bool = False,
    ) -> None:
        """``add_expert``: also list the expert's next action, which ``game`` may list in another wording."""
        self.name, self.instruction = game.name, f"{game.instruction}\n"
        self._game = game
        self.max_turns, self.labels = max_turns, tuple(labels)
        self._shuffle_action, self._seed, self._add_expert = shuffle_action, seed, add_expert
        self._now = ListedSnapshot(-1, 0, "", (), 0, True, 0.0, None)

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """See ``EnumeratedEnv``; there are no splits here, because the method draws them."""
        return self._game.task_ids()

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """See ``EnumeratedEnv``: there are no levels."""
        if level:
            raise UserError(f"{self.name} has no level {level!r}; remove the levels.")
        return list(tasks)

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        self.level_tasks(level, ())
        first = self._game.reset(task_id)
        self._now = ListedSnapshot(task_id, episode, first, (), 0, False, 0.0, self._game.snapshot())
        return self.state()

    def state(self) -> State:
        commands = self._valid()
        labelled = self._labelled(commands)
        pre, post = state_text(self._now.first, self._now.path), action_list(labelled.items())
        state = CutState(pre, post, tuple(labelled))
        state.without_label = len(commands) - len(labelled)
        return state

    def commands(self) -> dict[str, str]:
        """The i-th listed action has label i; ``shuffle_action`` permutes the actions first.

        If there are more actions than labels, the expert's next action is kept and the others are sampled.
        """
        return self._labelled(self._valid())

    def _valid(self) -> list[str]:
        """The currently valid actions."""
        if self._now.ended:
            return []
        self._game.restore(self._now.game)
        commands = self._game.valid_actions()
        if commands is None:
            raise UserError(
                f"{self.name} does not list its actions, so they cannot be labelled; choose another method."
            )
        return sorted({*commands, *self.oracle()[:1]}) if self._add_expert else list(dict.fromkeys(commands))

    def _labelled(self, commands: list[str]) -> dict[str, str]:
        now, most = self._now, len(self.labels)
        if len(commands) > most:
            kept = self.oracle()[:1]
            others = [command for command in commands if command not in kept]
            drawn = rng(f"{self.name} listed", self._seed, now.task, now.episode, len(now.path)).sample(others, most)
            kept = [*kept, *drawn][:most]
            commands = [command for command in commands if command in kept]
        if self._shuffle_action:
            commands = list(commands)  # do not modify the game's list
            rng(f"{self.name} labels", self._seed, now.task, now.episode, len(now.path)).shuffle(commands)
        return dict(zip(self.labels, commands, strict=False))

    def step(self, label: str) -> Played:
        """See ``EnumeratedEnv``; an invalid label leaves the state unchanged, but counts as a step."""
        now = self._now
        if now.ended:
            return Played(0.0, True, now.reward == 1, False, "")
        command = self.commands().get(label)
        output, reward, game, path, gone, valid = "Nothing happens.", now.reward, now.game, now.path, False, False
        if command is not None:
            self._game.restore(now.game)
            step = self._game.step(command)
            valid = bool(step.info.get("valid", True))
            output, reward, game = step.observation, step.reward, self._game.snapshot()
            path, gone = (*now.path, (command, output)), step.done
        late = now.steps + 1 >= self.max_turns
        ended = reward == 1 or late or gone
        self._now = now._replace(path=path, steps=now.steps + 1, ended=ended, reward=reward, game=game)
        return Played(now.reward - reward, ended, reward == 1, valid, output)

    def oracle(self) -> list[str]:
        if self._now.ended:
            return []
        self._game.restore(self._now.game)
        return [move.action for move in self._game.expert()]

    def explain(self, last: Last | None, *key: object) -> str:
        """The expert's next thought; after the first step preceded by a sentence on whether the last action helped."""
        said = []
        if last is not None:
            said.append(rng(f"{self.name} reflection", *key).choice(self.helped if last.helped else self.wrong))
        if not self._now.ended:
            self._game.restore(self._now.game)
            said += [move.thought for move in self._game.expert()[:1]]
        return " ".join(said)

    def reveals(self, text: str) -> bool:
        """See ``EnumeratedEnv``: revealing the next action is allowed here."""
        return False

    def snapshot(self) -> ListedSnapshot:
        return self._now

    def restore(self, snapshot: ListedSnapshot) -> None:
        self._now = snapshot

    def copy(self) -> ListedText:
        """See ``EnumeratedEnv``; the game can be shared, because it is restored to the right state before each use."""
        return copy.copy(self)
