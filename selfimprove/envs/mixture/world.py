"""Params of a mixture: several environments as one. One model is trained on all of them and evaluated on each.

    agent_r:
      env:
        - {name: textcraft, share: 0.75}
        - {name: encyclopedia, share: 0.25}

With an adapter, its keys are next to the list: ``env: {name: mixture, parts: […], labels: single}``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SerializeAsAny, model_validator

from selfimprove.core.params import Section
from selfimprove.core.sums import float_sum
from selfimprove.envs.interface import AgentEnv, World
from selfimprove.envs.params import TextParams

CLOSE = 1e-6


class Part(Section):
    """One environment of a mixture."""

    share: float = Field(gt=0, le=1, description="share of the tasks of every split; all shares sum to 1")
    env: SerializeAsAny[TextParams] = Field(description="filled in from the environment's own keys")


class MixtureParams(TextParams):
    """Environments, each with a share of the tasks; in params.yaml a list of ``env`` sections with ``share``."""

    name: Literal["mixture"] = "mixture"
    parts: list[Part] = Field(min_length=2, description="the environments of the mixture")

    @model_validator(mode="after")
    def _whole(self) -> MixtureParams:
        total = float_sum(part.share for part in self.parts)
        if abs(total - 1) > CLOSE:
            raise ValueError(f"share: the shares of {self.world_name} sum to {total:g}; make them sum to 1")
        if len(set(self.names())) < len(self.parts):
            raise ValueError(f"name: {self.world_name} names an environment twice; name each once")
        if self.server is not None:
            raise ValueError("server: a mixture has no server; set it on an environment of the list")
        return self

    def mixed(self) -> tuple[TextParams, ...]:
        return tuple(part.env for part in self.parts)

    def names(self) -> tuple[str, ...]:
        """The names of the environments."""
        return tuple(env.world_name for env in self.mixed())

    @property
    def world_name(self) -> str:
        """All names, joined by +."""
        return "+".join(self.names())

    def instruction(self) -> str:
        from selfimprove.envs.mixture.env import INSTRUCTION

        return INSTRUCTION

    def make(self) -> AgentEnv:
        from selfimprove.envs.mixture.env import Mixture

        return Mixture(self.world_name, [part.env.make() for part in self.parts], [part.share for part in self.parts])

    def world(self) -> World:
        """One world of each environment, embedded or on its server."""
        from selfimprove.envs.mixture.env import MixtureWorld

        return MixtureWorld(self.world_name, tuple(part.env.world() for part in self.parts))
