"""The ``env`` section of ScienceWorld."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from selfimprove.engines.cluster.config import in_use
from selfimprove.envs.interface import AgentEnv, World
from selfimprove.envs.params import AgentGym, Judged, TextParams

if TYPE_CHECKING:
    from selfimprove.envs.sciworld.jvm import JvmPool


class SciWorldParams(TextParams):
    """ScienceWorld: experiments in a simulated house (make env-sciworld; needs Java)."""

    name: Literal["sciworld"] = "sciworld"
    jvms: int = Field(default=2, ge=1, le=64, description="number of Java processes in the pool")
    map_actions: bool = Field(default=False, description="map each action to the nearest valid one")

    judged: ClassVar[Judged] = Judged(
        "a text world with rooms and instruments, in which a science task is to be carried out", "science"
    )
    best: ClassVar[float] = 100.0
    has_games: ClassVar[bool] = True
    lists_expert: ClassVar[bool] = False

    def make(self) -> AgentEnv:
        from selfimprove.envs.sciworld.env import SciWorld

        return SciWorld(_pool(self.jvms), map_actions=self.map_actions)

    def embedded_world(self) -> World:
        """See ``TextParams``: a replay world, as simulators can't be snapshotted. Missing Java is reported at once."""
        from selfimprove.envs.sciworld.env import SciWorldWorld
        from selfimprove.envs.sciworld.jvm import find_java

        if in_use().kind != "ray":  # otherwise Java is needed only on the nodes
            find_java()
        return SciWorldWorld(self.jvms, self.map_actions)

    def instruction(self) -> str:
        from selfimprove.envs.sciworld.env import INSTRUCTION

        return INSTRUCTION

    @classmethod
    def agentgym(cls) -> AgentGym:
        from selfimprove.envs.sciworld.agentgym import SCIWORLD, RemoteSciWorldSlot

        return AgentGym(SCIWORLD, RemoteSciWorldSlot.world)


@lru_cache(maxsize=1)
def _pool(jvms: int) -> JvmPool:
    """The Java processes shared by all copies created here; they end with this process."""
    from selfimprove.envs.sciworld.hosted import make_pool

    return make_pool(jvms)
