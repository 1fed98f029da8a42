r"""Plays on a server with AgentGym's HTTP protocol, in the dialect that the environment's folder declares.

An episode on a TextCraft server (client's call -> server's answer)::

    POST /create {}                                  -> {"id": 4, "observation": "Crafting commands:\n...", ...}
    POST /reset {"id": 4, "data_idx": 7}             -> {"observation": "Crafting commands:\ncraft 4 ...", ...}
    POST /step {"id": 4, "action": "get 1 oak log"}  -> {"observation": "Got 1 oak log", "reward": 0, "done": false}
    POST /step {"id": 4, "action": "craft 4 ..."}    -> {"observation": "Crafted 4 ...", "reward": 1, "done": true}
    POST /close {"id": 4}                            -> true

A server's environment cannot be snapshotted, so the world works by replay (``envs/replay.py``), with ``concurrency``
environments held open. The bare action is sent, without "Action:" (docs/agent-r.md, A41). A step that may have been
executed is never sent again to the same environment (``envs/remote/link.py``): that environment is abandoned, and its
episode is replayed in another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from selfimprove.core.records import plain_text
from selfimprove.envs.interface import EnvError, Step, World
from selfimprove.envs.remote.link import ALWAYS, IF_ANSWERED, NEVER, Fault, Link, Method
from selfimprove.envs.replay import ReplayWorld, Slot

T = TypeVar("T")


class _RemoteWorld(ReplayWorld):
    def __init__(self, name: str, slot: type[RemoteSlot], link: Link, concurrency: int, instruction: str) -> None:
        async def make_slot() -> Slot:
            return await slot.open(link)

        super().__init__(name, instruction, make_slot, concurrency)
        self._link = link

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._link.close()


class Answer(BaseModel):
    """Base of answers: only declared fields are read; servers may send more."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Id(Answer):
    id: int


class Begun(Answer):
    observation: str


class Stepped(Answer):
    observation: str
    reward: float
    done: bool


class RemoteSlot(ABC):
    """One environment on the server."""

    id_key: ClassVar[str] = "id"
    created: ClassVar[TypeAdapter[Any]] = TypeAdapter(_Id)

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._me = {self.id_key: number}
        self._absences = link.absences

    @classmethod
    def world(
        cls, name: str, server: str, concurrency: int, timeout: float, instruction: str, *, backoff: float = 0.5
    ) -> World:
        """A world on an AgentGym server. Nothing is sent before the first ``reset``.

        Args:
            name: the environment's.
            server: its address, ``http://host:port``.
            concurrency: environments held open, which limits concurrent calls.
            timeout: seconds per call.
            instruction: the first user message, which is not part of the protocol.
            backoff: seconds before the first retry of a call; doubled each time.

        Raises:
            UserError: ``server`` is not a plain http(s) address.
        """
        return _RemoteWorld(name, cls, Link(server, concurrency, timeout, backoff), concurrency, instruction)

    @classmethod
    async def open(cls, link: Link) -> Slot:
        """Create an environment."""
        answer = await link.call("POST", "/create", {}, cls.created, ALWAYS)
        return cls(link, answer if isinstance(answer, int) else answer.id)

    @abstractmethod
    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""

    @abstractmethod
    async def step(self, action: str) -> Step:
        """See ``Slot``."""

    async def close(self) -> None:
        """See ``Slot``. Older WebShop servers do not support this call, and keep the environment."""
        if self._link.absences == self._absences:
            await self._link.farewell(self._me)

    async def _reset(self, shape: type[T], **task: int) -> T:
        return await self._call("POST", "/reset", task, shape, IF_ANSWERED)

    async def _step(self, shape: type[T], action: str) -> T:
        return await self._call("POST", "/step", {"action": action}, shape, NEVER)

    async def _call(self, method: Method, path: str, more: dict[str, Any], shape: Any, again: tuple[Fault, ...]) -> Any:
        if self._link.absences != self._absences:
            raise EnvError(f"{self._link.server} was away; it may have forgotten the environment")
        return await self._link.call(method, path, {**self._me, **more}, TypeAdapter(shape), again)


def outcome(observation: str, raw: float, best: float, done: bool, valid: bool) -> Step:
    """A step with its score normalised to [0, 1]; a negative score is a disaster, which ends the episode."""
    disaster = raw < 0
    reward = 0.0 if disaster else min(raw / best, 1.0)
    return Step(
        plain_text(observation), reward, done or disaster, {"raw_score": raw, "valid": valid, "disaster": disaster}
    )
