"""Gymnasium's environments, acted in by text.

A task is the seed of ``reset``, so its random draws are the same in every episode. A state is the list of actions since
then; ``restore`` replays them. Numbered actions are written as their names or numbers, actions in a text space
literally. An observation is the environment's text rendering (``render_mode="ansi"``) if there is one, else its
values.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move
from selfimprove.envs.own import TextEnv

COLOURED = re.compile(r"\x1b\[(\d+)[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
"""Coloured parts of a terminal drawing, such as FrozenLake's position or Taxi's passenger."""
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson", "plain"]
"""Names by the last digit of a colour's code; 39 and 49 select the terminal's own colours."""
MOST_VALUES = 1000
"""Maximum values of an observation: more are a picture."""
CLOSE = 1e-9


class Gymnasium(TextEnv):
    """One of ``gymnasium.make``'s environments.

    Args:
        made_as: its id.
        name: its name in outputs.
        options: further arguments of ``gymnasium.make``.
        names: names of the numbered actions; empty: their numbers.
        about: description at the start of the instruction.
        score: how rewards are converted to a score (``GymnasiumParams.score``).
        success_return: the sum of rewards with score 1, for ``score="return"``.
        tasks: number of tasks (seeds).

    Raises:
        UserError: Gymnasium has no such environment, or its spaces cannot be written as text.
    """

    def __init__(
        self,
        made_as: str,
        name: str,
        options: Mapping[str, Any],
        names: Sequence[str] = (),
        *,
        about: str = "",
        score: Literal["return", "terminated"] | float = "return",
        success_return: float = 1.0,
        tasks: int = 2000,
    ) -> None:
        self.name, self.tasks = name, tasks
        self._env = _made(made_as, options)
        self._score, self._success_return = score, success_return
        space = self._env.action_space
        self._first = int(getattr(space, "start", 0))
        self.actions = _names(made_as, space, names)
        self.instruction = _instruction(about or f"This is {made_as}.", self.actions)  # type: ignore[misc]
        self._task = -1  # not started
        self._path: tuple[Any, ...] = ()

    def begin(self, task_id: int) -> str:
        """See ``TextEnv``: the task is the seed."""
        seen, info = self._env.reset(seed=task_id)
        self._task, self._path, self._sum = task_id, (), 0.0
        return self._written(seen, info)

    def act(self, action: str) -> tuple[str, float, bool]:
        """See ``TextEnv``."""
        number = self.actions.index(action) + self._first if self.actions else action
        seen, reward, terminated, truncated, info = self._env.step(number)
        self._path += (number,)
        self._sum += float(reward)
        match self._score:
            case "return":
                score = self._sum / self._success_return
            case "terminated":
                score = float(terminated)
            case least:
                score = float(float(reward) >= least)
        if not -CLOSE <= score <= 1 + CLOSE:
            raise UserError(
                f"gymnasium:{self.name}: the rewards of task {self._task} add up to {self._sum:g}, but a score must be "
                "in [0, 1]; set env.success_return to the sum that means success, or env.score to terminated or to "
                "the reward that means success."
            )
        return self._written(seen, info), min(1.0, max(0.0, round(score, 9))), terminated or truncated

    def valid_actions(self) -> list[str] | None:
        """See ``AgentEnv``: those in ``action_mask``, if the environment provides it; None for free text."""
        if not self.actions:
            return None
        listed = super().valid_actions() or []
        if self._mask is None:
            return listed
        allowed = {name for name, may in zip(self.actions, self._mask, strict=True) if may}
        return [name for name in listed if name in allowed]

    def _understands(self, action: str) -> bool:
        """See ``TextEnv``: for free text, whatever the action space contains."""
        if self.actions:
            return super()._understands(action)
        return not self._last[1] and bool(self._env.action_space.contains(action))

    def expert(self) -> list[Move]:
        """See ``TextEnv``; none if actions are free text."""
        return super().expert() if self.actions else []

    def snapshot(self) -> Any:
        """See ``AgentEnv``: the task and the actions since its start."""
        return self._task, self._path, self._last

    def restore(self, snapshot: Any) -> None:
        """See ``AgentEnv``: replays all actions, or only the missing ones."""
        task, path, last = snapshot
        if (self._task, self._path) != (task, path):
            done = len(self._path)
            if self._task != task or path[:done] != self._path:
                self.begin(task)
                done = 0
            for number in path[done:]:
                self.act(self.actions[number - self._first] if self.actions else number)
        self._last = last

    def _apart(self) -> Any:
        """See ``TextEnv``: the observation, since paths differ even if they lead to the same state."""
        return self._seen

    def _written(self, seen: Any, info: Mapping[str, Any]) -> str:
        with np.printoptions(threshold=sys.maxsize):  # repr would leave out most values of a large array
            self._seen = repr(seen)
        self._mask = info.get("action_mask") if self.actions else None
        if self._env.render_mode == "ansi":
            return drawing(str(self._env.render()))
        return written(seen)


def drawing(text: str) -> str:
    """A terminal drawing with brackets around coloured parts, and the colours' names if there are several parts.

    >>> drawing("\x1b[41mS\x1b[0mFF")
    '[S]FF'
    >>> drawing("\x1b[43m \x1b[0m|\x1b[34;1mR\x1b[0m")
    '[yellow  ]|[blue R]'
    """
    one = len(COLOURED.findall(text)) == 1

    def bracketed(found: re.Match[str]) -> str:
        return f"[{found[2]}]" if one else f"[{COLOURS[int(found[1]) % 10]} {found[2]}]"

    return ESCAPES.sub("", COLOURED.sub(bracketed, text)).strip("\n")


def written(seen: Any) -> str:
    """An observation as text: text literally, numbers with four digits, arrays in brackets, a line for each key.

    >>> written({"place": np.array([0.5, 2]), "word": "go"})
    'place: [0.5, 2]\\nword: go'
    """
    if isinstance(seen, Mapping):
        return "\n".join(f"{key}: {written(value)}" for key, value in seen.items())
    if isinstance(seen, str):
        return seen
    if isinstance(seen, tuple | list) or (isinstance(seen, np.ndarray) and seen.ndim > 0):
        return f"[{', '.join(written(value) for value in seen)}]"
    return f"{seen:.4g}" if isinstance(seen, float | np.floating) else str(seen)


def _made(made_as: str, options: Mapping[str, Any]) -> Any:
    try:
        env = gymnasium.make(made_as, disable_env_checker=True, **options)
        if "ansi" in env.metadata.get("render_modes", ()) and "render_mode" not in options:
            env = gymnasium.make(made_as, disable_env_checker=True, render_mode="ansi", **options)
    except Exception as error:  # the environment's module may raise anything
        said = " ".join(str(error).split())
        raise UserError(f"gymnasium:{made_as} cannot be created ({said}); fix env.name or env.options.") from None
    if env.render_mode != "ansi" and (values := _values(env.observation_space)) > MOST_VALUES:
        raise UserError(
            f"gymnasium:{made_as} has observations of {values} values, but at most {MOST_VALUES} can be shown as text; "
            "choose an environment with smaller observations, or one with render mode ansi."
        )
    return env


def _values(space: Any) -> int:
    """Number of values in an observation; text counts as 0, since the environment limits it."""
    if isinstance(space, spaces.Text):
        return 0
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return sum(map(_values, space.values() if isinstance(space, spaces.Dict) else space))
    return int(np.prod(space.shape or (1,)))


def _names(made_as: str, space: Any, names: Sequence[str]) -> list[str]:
    """The actions by number; [] for a text space."""
    if isinstance(space, spaces.Text):
        if names:
            raise UserError(f"gymnasium:{made_as}: actions are free text; remove env.actions.")
        return []
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"gymnasium:{made_as}: the action space {space} is not supported; only Discrete and Text are.")
    if names and (len(names) != space.n or len(set(names)) != space.n):
        raise UserError(f"gymnasium:{made_as} has {space.n} actions; env.actions must name each once.")
    return list(names) or [str(space.start + i) for i in range(space.n)]


def _instruction(about: str, actions: Sequence[str]) -> str:
    what = f"one of these actions: {', '.join(actions)}" if actions else "one action"
    return f"{about}\nAnswer each time with a thought and {what}.\nThought: why\nAction: the action"
