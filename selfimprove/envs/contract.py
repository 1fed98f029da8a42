"""The contract of user-defined environments, checked once when a stage starts with a few actions on the first task."""

import traceback
from collections.abc import Callable, Mapping

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv

ACTIONS = 20
"""The maximum number of actions in the check."""


_DONE: set[tuple[str, str]] = set()


def check_once(name: str, options: str, make: Callable[[], AgentEnv]) -> None:
    """Refuse an environment whose reset depends on more than the task, or whose rewards are outside [0, 1].

    Environments whose texts are not strings, or whose state cannot be copied, are refused as well.

    Args:
        name, options: identify the class and its arguments; each pair is checked once per process.

    Raises:
        UserError: the violated requirement, or the location at which the class raised an exception.
    """
    if (name, options) in _DONE:
        return
    try:
        _check(name, make)
    except UserError:
        raise
    except Exception as error:  # a user-defined class may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name} failed in {place.filename}, line {place.lineno} ({said}); fix the class.") from error
    _DONE.add((name, options))


def _check(name: str, make: Callable[[], AgentEnv]) -> None:
    env, other = make(), make()
    for what in ("name", "instruction"):
        if not isinstance(value := getattr(env, what), str):
            raise UserError(f"{name}: {what} is {value!r}; it must be a string.")
    tasks = list(env.task_ids())
    if not tasks:
        raise UserError(f"{name} has no tasks; task_ids must list at least one.")
    task, draw = tasks[0], rng("own contract", name)
    first = env.reset(task)
    _is_text(name, "begins", first)
    env.snapshot()
    for _ in range(ACTIONS):
        listed = env.valid_actions()
        actions = [move.action for move in env.expert()[:1]] if listed is None else listed
        if not actions:
            break
        action = draw.choice(actions)
        if not isinstance(action, str):
            raise UserError(f"{name} lists the action {action!r}; an action must be a string.")
        observation, reward, _, info = env.step(action)
        _is_text(name, f"answers {action!r}", observation)
        if not 0 <= reward <= 1:
            raise UserError(f"{name}: step gave reward {reward} for {action!r}; rewards must be from 0 to 1.")
        if not isinstance(info, Mapping):
            raise UserError(f"{name}: step gave info {info!r}; it must be a mapping, such as {{'valid': True}}.")
    for again in (env.reset(task), other.reset(task)):
        if again != first:
            raise UserError(
                f"{name}: task {task} began with {first[:60]!r} and then with {again[:60]!r}; reset must depend only "
                "on the task."
            )


def _is_text(name: str, does: str, observation: object) -> None:
    if not isinstance(observation, str):
        raise UserError(f"{name} {does} with {observation!r}; an observation must be a string.")
