"""Adapter for Agent-R: environments with labelled actions, acted in by text. An action is the command itself."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import EnvParams, ListedParams, TextParams

OF_LABELS = ("labels", "shuffle_action", "curriculum_index")
"""The keys of a listed environment that only a method with labels reads."""


class ActedParams(TextParams):
    """An environment of Reflect-RL, with its own keys. An action is the command of a label."""

    inner: SerializeAsAny[ListedParams] = Field(description="filled in from the environment's own keys")

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (ListedParams,)
    how: ClassVar[str] = "commands instead of labels"

    @model_validator(mode="after")
    def _without_labels(self) -> ActedParams:
        refuse_labels(self.inner)
        return self

    def make(self) -> AgentEnv:
        return self.inner.acted()


def refuse_labels(section: EnvParams) -> None:
    """Raises: ValueError: a key is set that has no effect because actions have no labels."""
    for key in OF_LABELS:
        if isinstance(section, ListedParams) and getattr(section, key) != ListedParams.model_fields[key].default:
            raise ValueError(f"{key} has no effect where actions are commands, not labels; remove it")
