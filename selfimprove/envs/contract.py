"""The contract of user-defined environments: tried with a few actions when a stage starts, and kept in every call.

``CheckedEnv`` and ``checked_members`` stand for an object of a user's class. An exception that it raises, at whatever
episode, becomes one sentence with the class, the task and the place; the stage's log has the traceback.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, wraps
from inspect import getattr_static, iscoroutinefunction
from types import SimpleNamespace
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import plain_text
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, EnvError, Move, Problem, Step

ACTIONS = 20
"""The maximum number of actions in the check."""
SHOWN = 80
"""The maximum number of characters of an action or an attempt in a message."""


_DONE: set[tuple[str, str]] = set()


class CheckedEnv:
    """Implements ``AgentEnv`` over an object of a user's class. Every call raises UserError where the contract is not
    kept. Lone surrogates in observations and thoughts, which no file can hold, are replaced.
    """

    def __init__(self, label: str, env: AgentEnv) -> None:
        """``label``: the class, as params name it."""
        self._label, self._env, self._task = label, env, -1
        for what in ("name", "instruction"):
            if not isinstance(value := getattr(env, what), str):
                raise UserError(f"{label}: {what} is {value!r}; it must be a string.")
        self.name, self.instruction = env.name, plain_text(env.instruction)

    def task_ids(self) -> Sequence[int]:
        """See ``AgentEnv``."""
        with raising(self._label, "task_ids"):
            return self._env.task_ids()

    def reset(self, task_id: int) -> str:
        """See ``AgentEnv``."""
        self._task = task_id
        with self._raising("reset"):
            return self._text(f"begins task {task_id}", self._env.reset(task_id))

    def step(self, action: str) -> Step:
        """See ``AgentEnv``; what ``info`` leaves out is as after a valid action that is no disaster."""
        with self._raising(f"step({action[:SHOWN]!r})"):
            said, reward, done, info = self._env.step(action)
            if not 0 <= reward <= 1:
                raise UserError(
                    f"{self._label}: step gave reward {reward} for {action!r}; rewards must be from 0 to 1."
                )
            if not isinstance(info, Mapping):
                raise UserError(
                    f"{self._label}: step gave info {info!r}; it must be a mapping, such as {{'valid': True}}."
                )
            known = {"raw_score": float(reward), "valid": True, "disaster": False, **info}
            return Step(self._text(f"answers {action!r}", said), float(reward), bool(done), known)

    def snapshot(self) -> tuple[int, Any]:
        """See ``AgentEnv``; the task is for messages."""
        with self._raising("snapshot"):
            return self._task, self._env.snapshot()

    def restore(self, snapshot: tuple[int, Any]) -> None:
        """See ``AgentEnv``."""
        self._task, state = snapshot
        with self._raising("restore"):
            self._env.restore(state)

    def valid_actions(self) -> list[str] | None:
        """See ``AgentEnv``."""
        with self._raising("valid_actions"):
            listed = self._env.valid_actions()
            return None if listed is None else [self._action(action) for action in listed]

    def expert(self) -> list[Move]:
        """See ``AgentEnv``."""
        with self._raising("expert"):
            return [Move(plain_text(thought), self._action(action)) for thought, action in self._env.expert()]

    def _raising(self, method: str) -> AbstractContextManager[None]:
        return raising(self._label, f"{method} of task {self._task}")

    def _text(self, does: str, observation: object) -> str:
        if not isinstance(observation, str):
            raise UserError(f"{self._label} {does} with {observation!r}; an observation must be a string.")
        return plain_text(observation)

    def _action(self, action: object) -> str:
        if not isinstance(action, str) or plain_text(action) != action:
            must = "have no half of a character (a lone surrogate)" if isinstance(action, str) else "be a string"
            raise UserError(f"{self._label} lists the action {action!r}; an action must {must}.")
        return action


def checked_members(label: str, own: Any, needed: Collection[str]) -> Any:
    """The public members of an object of a user's class; an exception of a method becomes a UserError.

    Args:
        label: the class, as params name it.
        needed: members of the protocol that the class implements. Other properties are left out: they are the class's
            own business, and may not be readable yet.
    """
    own_business = (property, cached_property)
    with raising(label, "its attributes"):
        found = {
            name: getattr(own, name)
            for name in dir(own)
            if not name.startswith("_") and (name in needed or not isinstance(getattr_static(own, name), own_business))
        }
    plain = {name: value for name, value in found.items() if not callable(value) or iscoroutinefunction(value)}
    return SimpleNamespace(**{name: _checked(label, value) for name, value in found.items()} | plain)


def _checked(label: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        shown = f"({arguments[0][:SHOWN]!r})" if arguments and isinstance(arguments[0], str) else ""
        of = "".join(f" of problem {one.id}" for one in arguments if isinstance(one, Problem))
        with raising(label, f"{method.__name__}{shown}{of}"):
            return method(*arguments, **named)

    return call


@contextmanager
def raising(label: str, what: str) -> Iterator[None]:
    """Raise a UserError about any other exception of the block, which runs ``what`` of the class ``label``."""
    try:
        yield
    except (UserError, EnvError):
        raise
    except Exception as error:  # a user-defined class may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{label} failed in {what}, in {place.filename}, line {place.lineno} ({said}); fix the class."
        ) from error


def check_once(name: str, options: str, make: Callable[[], AgentEnv], *, replays: bool = True) -> None:
    """Refuse an environment whose contract a few actions on the first task show to be broken.

    Its reset may depend only on the task, and a step only on the state; a snapshot must be the whole state, restored by
    any copy; rewards must be in [0, 1], and texts strings.

    Args:
        name, options: identify the class and its arguments; each pair is checked once per process.
        replays: whether to restore a state and repeat the actions from there.

    Raises:
        UserError: the violated requirement, or the location at which the class raised an exception.
    """
    if (name, options) not in _DONE:
        with raising(name, "its check"):
            _check(name, make(), make(), replays)
        _DONE.add((name, options))


def _check(name: str, env: AgentEnv, other: AgentEnv, replays: bool) -> None:
    tasks = list(env.task_ids())
    if not tasks:
        raise UserError(f"{name} has no tasks; task_ids must list at least one.")
    if odd := [task for task in tasks if type(task) is not int or task < 0]:
        raise UserError(f"{name}: task_ids lists {odd[0]!r}; a task's id must be a whole number from 0.")
    if len(set(tasks)) < len(tasks):
        twice = next(task for task, count in Counter(tasks).items() if count > 1)
        raise UserError(f"{name}: task_ids lists {twice} twice, so it could be in two splits; list each task once.")
    task, draw = tasks[0], rng("own contract", name)
    first, start = env.reset(task), env.snapshot()
    played, last = list[tuple[str, Step]](), start
    for _ in range(ACTIONS):
        listed = env.valid_actions()
        actions = [move.action for move in env.expert()[:1]] if listed is None else listed
        if not actions:
            break
        action, last = draw.choice(actions), env.snapshot()
        played.append((action, env.step(action)))
    for again in (env.reset(task), other.reset(task)):
        if again != first:
            raise UserError(
                f"{name}: task {task} began with {first[:60]!r} and then with {again[:60]!r}; reset must depend only "
                "on the task."
            )
    if replays:
        for state, steps in ((last, played[-1:]), (start, played)):
            other.restore(state)
            for action, before in steps:
                _same(name, action, before, other.step(action))


def _same(name: str, action: str, before: Step, after: Step) -> None:
    """Refuse another result of an action in the same state."""
    for what, one, two in zip(("observation", "reward", "done"), before, after, strict=False):
        if one != two:
            raise UserError(
                f"{name}: {action!r} led to the {what} {str(one)[:60]!r}, and again from the same state, restored, to "
                f"{str(two)[:60]!r}; snapshot must hold the whole state, and a step depend on nothing else."
            )
