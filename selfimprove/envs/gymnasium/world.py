"""Params of Gymnasium's environments: ``gymnasium:<id>``."""

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import TextParams

PREFIX = "gymnasium"


class GymnasiumParams(TextParams):
    """Any Gymnasium environment with text or numbered actions, and observations that can be written as text."""

    name: str = Field(pattern=rf"^{PREFIX}:.+$", description="gymnasium:<id>, where <id> is passed to gymnasium.make")
    options: dict[str, Any] = Field(default={}, description="additional arguments of gymnasium.make")
    actions: list[str] = Field(default=[], description="names of the discrete actions, in order; []: their numbers")
    about: str = Field(
        default="", description='description of the environment at the start of the prompt; "": only its id'
    )
    score: Literal["return", "terminated"] | float = Field(
        default="return",
        description="return: the sum of the rewards divided by success_return, which must be in [0, 1]; terminated: "
        "1 if the episode terminates, else 0; a number: 1 once a step's reward is at least this number, else 0",
    )
    success_return: float = Field(
        default=1.0, gt=0, description="with score: return, the sum of rewards that scores 1 (CartPole-v1: 500)"
    )
    tasks: int = Field(default=2000, ge=1, le=1_000_000, description="number of tasks; each task is a seed of reset")

    prefix: ClassVar[str] = PREFIX
    paper: ClassVar[str] = ""

    @property
    def world_name(self) -> str:
        """The id in a form that is valid in file names."""
        return re.sub(r"[^\w.-]", "-", self.name.partition(":")[2])

    def make(self) -> AgentEnv:
        from selfimprove.envs.contract import CheckedEnv, check_once
        from selfimprove.envs.gymnasium.env import Gymnasium

        def made() -> AgentEnv:
            env = Gymnasium(
                self.name.partition(":")[2],
                self.world_name,
                self.options,
                self.actions,
                about=self.about,
                score=self.score,
                success_return=self.success_return,
                tasks=self.tasks,
            )
            return CheckedEnv(self.name, env)

        check_once(self.name, self.model_dump_json(), made)
        return made()
