"""Adapter for RISE: environments with actions as problems with one answer. An attempt is a whole plan."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from selfimprove.envs.adapters.acted import refuse_labels
from selfimprove.envs.interface import AnswerEnv
from selfimprove.envs.params import EnvParams, ListedParams, OwnTasksParams, TextParams


class PlannedParams(OwnTasksParams):
    """An environment with actions, with its own keys. An attempt is a plan of all actions at once."""

    inner: SerializeAsAny[TextParams | ListedParams] = Field(description="filled in from the environment's own keys")
    max_actions: int = Field(default=30, ge=1, le=1000, description="maximum number of actions in a plan")
    told: int = Field(
        default=1500,
        ge=100,
        le=100_000,
        description="characters of observations in the feedback, shared by all actions",
    )

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (TextParams, ListedParams)
    how: ClassVar[str] = "plans, carried out from a reset"

    @model_validator(mode="after")
    def _fits(self) -> PlannedParams:
        if self.told < 10 * self.max_actions:
            raise ValueError(
                f"told: {self.told} characters are too few for {self.max_actions} actions; set at least "
                f"{10 * self.max_actions}"
            )
        refuse_labels(self.inner)
        return self

    def make(self) -> AnswerEnv:
        """See ``AnswerParams``; if ``server`` is set, plans are executed there."""
        from selfimprove.envs.plans import Plans

        world = self.inner.world if isinstance(self.inner, TextParams) else None
        return Plans(self.inner.acted(), world, self.max_actions, self.told)
