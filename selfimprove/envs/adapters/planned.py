"""Environments that are acted in, as problems with one answer (RISE): an attempt is a whole plan."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from selfimprove.envs.interface import AnswerEnv
from selfimprove.envs.params import AnswerParams, EnvParams, ListedParams, TextParams


class PlannedParams(AnswerParams):
    """An environment that is acted in, whose keys are its own: an attempt is a plan of all actions at once."""

    inner: SerializeAsAny[TextParams | ListedParams] = Field(description="filled in from the environment's own keys")
    few_shot: bool = Field(default=False, description="false: the paper's worked example is of mathematics")
    max_actions: int = Field(default=30, ge=1, le=1000, description="actions of a plan, at most")
    told: int = Field(
        default=1500,
        ge=100,
        le=100_000,
        description="characters of what happened, in the feedback; shared by all actions",
    )

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (TextParams, ListedParams)
    how: ClassVar[str] = "plans, carried out from a reset"
    own_tasks: ClassVar[bool] = True

    @property
    def world_name(self) -> str:
        """The environment's."""
        return self.inner.world_name

    @field_validator("few_shot")
    @classmethod
    def _no_example(cls, value: bool) -> bool:
        if value:
            raise ValueError("the worked example is of mathematics; set false for an environment that is acted in")
        return value

    @model_validator(mode="after")
    def _room(self) -> PlannedParams:
        if self.told < 10 * self.max_actions:
            raise ValueError(
                f"told: {self.told} characters are too few for {self.max_actions} actions; set 10 for each"
            )
        return self

    def make(self) -> AnswerEnv:
        """See ``AnswerParams``; where ``server`` is set, plans are carried out there."""
        from selfimprove.envs.plans import Plans

        world = self.inner.world if isinstance(self.inner, TextParams) else None
        return Plans(self.inner.acted(), world, self.max_actions, self.told)
