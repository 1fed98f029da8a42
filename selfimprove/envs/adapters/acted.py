"""Adapter for Agent-R: environments with labelled actions, acted in by text. An action is the command itself."""

from typing import ClassVar

from pydantic import Field, SerializeAsAny

from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import EnvParams, ListedParams, TextParams


class ActedParams(TextParams):
    """An environment of Reflect-RL, with its own keys. An action is the command of a label."""

    inner: SerializeAsAny[ListedParams] = Field(description="filled in from the environment's own keys")

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (ListedParams,)
    how: ClassVar[str] = "commands instead of labels"

    def make(self) -> AgentEnv:
        return self.inner.acted()
