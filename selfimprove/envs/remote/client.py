r"""Plays on a server that speaks AgentGym's HTTP protocol: TextCraft's, ScienceWorld's or WebShop's dialect of it.

An episode on a TextCraft server (client's call -> server's answer)::

    POST /create {}                                  -> {"id": 4, "observation": "Crafting commands:\n...", ...}
    POST /reset {"id": 4, "data_idx": 7}             -> {"observation": "Crafting commands:\ncraft 4 ...", ...}
    POST /step {"id": 4, "action": "get 1 oak log"}  -> {"observation": "Got 1 oak log", "reward": 0, "done": false}
    POST /step {"id": 4, "action": "craft 4 ..."}    -> {"observation": "Crafted 4 ...", "reward": 1, "done": true}
    POST /close {"id": 4}                            -> true

A server's environment cannot be snapshotted, so the world is one by replay (``envs/replay.py``); ``concurrency``
environments are held open. The bare action is sent, without "Action:" (docs/agent-r.md, A41).
A step that may have been taken is never sent again to the same environment (``envs/remote/link.py``): the
environment is given up, and its episode is replayed in another.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from selfimprove.envs.interface import EnvError, Step, World
from selfimprove.envs.remote.link import ALWAYS, IF_ANSWERED, NEVER, Fault, Link, Method, in_short, plain_text
from selfimprove.envs.replay import ReplayWorld, Slot

T = TypeVar("T")


def make_remote_world(
    name: str, server: str, concurrency: int, timeout: float, instruction: str, *, backoff: float = 0.5
) -> World:
    """A world on an AgentGym server. Nothing is sent before the first ``reset``.

    Args:
        name: textcraft, webshop or sciworld: which dialect the server speaks.
        server: its address, ``http://host:port``.
        concurrency: environments held open, and so calls at once.
        timeout: seconds a call may take.
        instruction: the first user message; the protocol does not tell it.
        backoff: seconds before a call is first tried again; doubled each time.

    Raises:
        UserError: ``server`` is no plain http(s) address.
    """
    return _RemoteWorld(name, Link(server, concurrency, timeout, backoff), concurrency, instruction)


class _RemoteWorld(ReplayWorld):
    def __init__(self, name: str, link: Link, concurrency: int, instruction: str) -> None:
        dialect = _DIALECTS[name]

        async def make_slot() -> Slot:
            return await dialect.open(link)

        super().__init__(name, instruction, make_slot, concurrency)
        self._link = link

    async def close(self) -> None:
        """See ``World``."""
        try:
            await super().close()
        finally:
            await self._link.close()


class _Answer(BaseModel):
    """What we read of an answer; servers may tell more."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Id(_Answer):
    id: int


class _Begun(_Answer):
    observation: str


class _Stepped(_Answer):
    observation: str
    reward: float
    done: bool


class _SciWorldBegun(_Answer):
    task_description: str
    observation: str


class _SciWorldStepped(_Answer):
    observation: str
    score: float
    done: bool


class _WebShopStepped(_Answer):
    state: str
    reward: float
    done: bool


class _Actions(_Answer):
    clickables: list[str]


class _RemoteSlot(ABC):
    """One environment on the server."""

    id_key: ClassVar[str] = "id"
    created: ClassVar[TypeAdapter[Any]] = TypeAdapter(_Id)

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._me = {self.id_key: number}
        self._absences = link.absences

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
        """See ``Slot``. Older WebShop servers know no such call; that is their affair."""
        if self._link.absences == self._absences:
            await self._link.farewell("/close", self._me)

    async def _reset(self, shape: type[T], **task: int) -> T:
        return await self._call("POST", "/reset", task, shape, IF_ANSWERED)

    async def _step(self, shape: type[T], action: str) -> T:
        return await self._call("POST", "/step", {"action": action}, shape, NEVER)

    async def _call(self, method: Method, path: str, more: dict[str, Any], shape: Any, again: tuple[Fault, ...]) -> Any:
        if self._link.absences != self._absences:
            raise EnvError(f"{self._link.server} was away; it may have forgotten the environment")
        return await self._link.call(method, path, {**self._me, **more}, TypeAdapter(shape), again)


class TextCraftSlot(_RemoteSlot):
    """TextCraft's dialect. The reward is 1 when the goal is crafted."""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""
        return plain_text((await self._reset(_Begun, data_idx=task_id)).observation)

    async def step(self, action: str) -> Step:
        """See ``Slot``."""
        answer = await self._step(_Stepped, action)
        valid = not answer.observation.startswith(("Could not ", "Wrong item format"))
        return _outcome(answer.observation, answer.reward, 1.0, answer.done, valid)


class SciWorldSlot(_RemoteSlot):
    """ScienceWorld's dialect. ``score`` (0 to 100, -100 after a fatal mistake) counts, ``reward`` is its change."""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``. The first observation opens with the task's description."""
        answer = await self._reset(_SciWorldBegun, data_idx=task_id)
        return plain_text(f"{answer.task_description}\n{answer.observation}")

    async def step(self, action: str) -> Step:
        """See ``Slot``."""
        answer = await self._step(_SciWorldStepped, action)
        valid = not answer.observation.startswith(("No known action", "Unknown action", "Ambiguous request"))
        return _outcome(answer.observation, answer.score, 100.0, answer.done, valid)


class WebShopSlot(_RemoteSlot):
    """WebShop's dialect: ids are plain numbers, a task is a ``session_id``, an observation a ``state``."""

    id_key = "env_idx"
    created = TypeAdapter(int)
    _page = ""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""
        answer = await self._reset(list[Any], session_id=task_id)
        if not answer or not isinstance(answer[0], str):
            raise EnvError(f"{self._link.server}/reset: not this environment's protocol: {in_short(str(answer))}")
        self._page = plain_text(answer[0])
        return self._page

    async def step(self, action: str) -> Step:
        """See ``Slot``. The score is cut from the last page: no prompt may hold it."""
        answer = await self._step(_WebShopStepped, action)
        page = re.split(r" \[SEP\] (?:Reward \[SEP\] )?Your score", answer.state)[0] if answer.done else answer.state
        valid = page != self._page or await self._offered(action)
        self._page = plain_text(page)
        return _outcome(page, answer.reward, 1.0, answer.done, valid)

    async def _offered(self, action: str) -> bool:
        """Whether an action that left the page as it was made sense: the page looks alike with any option chosen."""
        match = re.match(r"(.+)\[(.+)\]", action.strip())
        if match is None or match[1] != "click":
            return match is not None and match[1] == "search"
        offered = await self._call("GET", "/available_actions", {}, _Actions, NEVER)
        return match[2].lower() in (text.lower() for text in offered.clickables)


_DIALECTS: dict[str, type[_RemoteSlot]] = {
    "textcraft": TextCraftSlot,
    "sciworld": SciWorldSlot,
    "webshop": WebShopSlot,
}


def _outcome(observation: str, raw: float, best: float, done: bool, valid: bool) -> Step:
    """A step with its score on our scale: [0, 1], and a disaster, which ends the episode, where it is negative."""
    disaster = raw < 0
    reward = 0.0 if disaster else min(raw / best, 1.0)
    return Step(
        plain_text(observation), reward, done or disaster, {"raw_score": raw, "valid": valid, "disaster": disaster}
    )
