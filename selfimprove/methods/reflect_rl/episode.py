"""The record of an episode: steps with reflection, action, log-probability and cost (docs/reflect-rl.md, L48).

A step of DangerousTaxi::

    {"reflection": "The passenger is one row north.", "label": "1", "command": "move north",
     "logprob": -0.05, "entropy": 0.21, "cost": 0.05}
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.records import Record, Status
from selfimprove.core.seeds import SeedKey
from selfimprove.core.sums import float_sum
from selfimprove.engines.base import EngineError
from selfimprove.envs.interface import EnumeratedEnv, EnvError, Played, State
from selfimprove.methods.reflect_rl.rl_objective import Decision, RLTrajectory, costs_to_go


class RLStep(Record):
    """One step. ``reflection`` is None without a reflection model, and "" if the model was not called at this step.

    ``logprob`` and ``entropy`` are those of the choice among the allowed actions (None if the engine does not report
    them). Other data that an update needs (ids of prompt and label, the listed labels) are kept in memory only.
    """

    prompt: str
    reflection: str | None = None
    label: str
    command: str | None = Field(default=None, description="null: the label matched no command")
    logprob: float | None = None
    entropy: float | None = None
    cost: float
    valid: bool = True
    shortened: bool = Field(
        default=False, description="the prompt of the policy or the reflector was truncated on the left"
    )
    cut: bool = Field(default=False, description="the reflection (of an agent: an answer) was cut at max_tokens")
    prompt_ids: list[int] = Field(default=[], exclude=True)
    token: int = Field(default=-1, exclude=True)
    labels: tuple[str, ...] = Field(default=(), exclude=True)
    unlisted: int = Field(default=0, exclude=True)


class RLEpisode(Record):
    """One episode. ``status``: ``solved`` as judged by the environment; ``blocked`` if an engine failed permanently."""

    id: str
    env: str
    task_id: int
    level: str = ""
    episode: int = 0
    status: Status
    steps: list[RLStep]
    seed: str
    error: str | None = None

    @property
    def cost(self) -> float:
        """Q_0 without entropy: the total cost of the episode."""
        return float_sum(step.cost for step in self.steps)

    @property
    def success(self) -> bool:
        """Whether the episode reached its goal."""
        return self.status == "solved"


@runtime_checkable
class ReadsCommands(Protocol):
    """An environment that accepts more than the listed labels: surrounding blanks, a dot, or a command."""

    def named(self, text: str) -> str | None:
        """The command that ``step`` executes for a text, or None."""


def taken(env: EnumeratedEnv, task: int, label: str) -> tuple[str | None, Played]:
    """Take an action: the executed command (None: none) and its outcome.

    Raises:
        UserError: the environment returned a non-finite cost.
    """
    command = env.named(label) if isinstance(env, ReadsCommands) else env.commands().get(label)
    played = env.step(label)
    if not math.isfinite(played.cost):
        raise UserError(
            f"{env.name}: action {label!r} in task {task} returned cost {played.cost}, which is not a finite number; "
            "fix the environment's reward."
        )
    return command, played


Act = Callable[[State, SeedKey], Awaitable[tuple[RLStep, Played]]]
"""Chooses an action in a state and takes it."""


async def play_steps(env: EnumeratedEnv, task: int, level: str, number: int, key: SeedKey, act: Act) -> RLEpisode:
    """Play a task to its end; ``env`` is a copy that only ``act`` uses."""
    steps, error = list[RLStep](), None
    status: Status = "unsolved"
    try:
        state = env.reset(task, number, level)
        for turn in range(env.max_turns):
            step, played = await act(state, replace(key, turn=turn))
            steps.append(step)
            if played.done:
                status = "solved" if played.success else "unsolved"
                break
            state = env.state()
    except (EngineError, EnvError) as failure:
        status, error = "blocked", str(failure)
    return RLEpisode(
        id=episode_id(env.name, task, level, number), env=env.name, task_id=task, level=level, episode=number,
        status=status, steps=steps, seed=f"{key.run}/{key.task}", error=error,
    )  # fmt: skip


def trajectory(episode: RLEpisode, ids: Mapping[str, int] | None, masked: bool) -> RLTrajectory:
    """The episode in the form used by the update.

    Args:
        ids: the token id of every label; None if actions are chosen from the whole vocabulary.
        masked: actions were chosen among the labels listed at the step (if any), rather than among all.
    """
    every = None if ids is None else list(ids.values())
    decisions = []
    for step in episode.steps:
        assert step.logprob is not None
        assert step.entropy is not None
        allowed = [ids[label] for label in step.labels] if masked and ids is not None and step.labels else every
        decisions.append(Decision(step.prompt_ids, step.token, allowed, step.logprob, step.entropy, step.cost))
    return RLTrajectory(episode.id, episode.success, decisions)


def details(episode: RLEpisode, taken: Sequence[Decision], beta: float) -> list[dict[str, Any]]:
    """The episode's part of a log: one row per step, as in the original's logs.json."""
    q = costs_to_go([one.cost for one in taken], [one.entropy for one in taken], beta)
    return [
        {
            "step": number,
            "Q_value": value,
            "logprob": step.logprob,
            "entropy": step.entropy,
            "cost": step.cost,
            "prompt": step.prompt,
            "generation": step.label,
        }
        for number, (step, value) in enumerate(zip(episode.steps, q, strict=True))
    ]


def episode_id(env: str, task: int, level: str, episode: int) -> str:
    """An episode's id: the environment, the task, the curriculum's level (if any) and the draw."""
    return f"{env}-{task}" + (f"-{level}" if level else "") + f"-{episode}"
