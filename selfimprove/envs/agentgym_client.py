r"""Plays on a server that speaks AgentGym's HTTP protocol: TextCraft's, ScienceWorld's or WebShop's dialect of it.

An episode on a TextCraft server (client's call -> server's answer)::

    POST /create {}                                  -> {"id": 4, "observation": "Crafting commands:\n...", ...}
    POST /reset {"id": 4, "data_idx": 7}             -> {"observation": "Crafting commands:\ncraft 4 ...", ...}
    POST /step {"id": 4, "action": "get 1 oak log"}  -> {"observation": "Got 1 oak log", "reward": 0, "done": false}
    POST /step {"id": 4, "action": "craft 4 ..."}    -> {"observation": "Crafted 4 ...", "reward": 1, "done": true}
    POST /close {"id": 4}                            -> true

Source: spec agent_r §3, AgentGym HTTP. A server's environment cannot be snapshotted, so the world is one by replay
(``envs/replay.py``); ``concurrency`` environments are held open. Errors come with status 200 and a body ``{"error":
...}``. The bare action is sent, without "Action:" (trap 7). A step that may have been taken is never sent again to the
same environment: the environment is given up, and its episode is replayed on another.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Literal, TypeVar

import httpx
import tenacity
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from selfimprove.envs.agent import EnvError, Step, World
from selfimprove.envs.replay import ReplayWorld, Slot
from selfimprove.errors import UserError

TRIES = 4
"""How often a call that may be repeated is sent."""

FAREWELL = 5.0
"""Seconds that closing an environment may take; a server that takes longer keeps it."""

_SAY = 300  # characters of a server's own words that an error repeats
_LOCAL = ("localhost", "127.0.0.1", "::1")

T = TypeVar("T")
Method = Literal["GET", "POST"]
Fault = Literal["unreached", "answered", "lost"]


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
    return _RemoteWorld(name, _Link(server, concurrency, timeout, backoff), concurrency, instruction)


class _RemoteWorld(ReplayWorld):
    def __init__(self, name: str, link: _Link, concurrency: int, instruction: str) -> None:
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


class _Fault(Exception):
    """A call that failed. unreached: the server never saw it; answered: it failed in it (5xx); lost: who knows."""

    def __init__(self, kind: Fault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Link:
    """One server: sends a call, again where that does no harm, and tells its failures apart."""

    def __init__(self, server: str, concurrency: int, timeout: float, backoff: float) -> None:
        self.server = _address(server)
        self._timeout, self._backoff, self._concurrency = timeout, backoff, concurrency
        self._client: httpx.AsyncClient | None = None
        self._answered = False
        self._left = False  # an environment was given up, and may still take up room on the server

    async def call(
        self, method: Method, path: str, fields: Mapping[str, Any], shape: TypeAdapter[T], again: tuple[Fault, ...]
    ) -> T:
        """The answer to one call, which must be a ``shape``.

        ``fields`` are sent as the body or, in a GET, as the query; ``again`` names the faults after which the call may
        be sent once more.

        Raises:
            EnvError: the call failed for good, or the answer is an error or no ``shape``.
            UserError: the server has never answered anything, or it serves something else.
        """
        try:
            async for attempt in tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(TRIES),
                wait=tenacity.wait_exponential(multiplier=self._backoff) + tenacity.wait_random(0, self._backoff),
                retry=tenacity.retry_if_exception(lambda error: isinstance(error, _Fault) and error.kind in again),
                reraise=True,
            ):
                with attempt:
                    return self._read(path, await self._send(method, path, fields, self._timeout), shape)
        except _Fault as fault:
            if not self._answered:
                raise UserError(
                    f"agent_r.env.server: nothing answers at {self.server} ({fault}); start the server there "
                    "(make serve ENV=... PORT=...), or set it to null to play on the embedded environment."
                ) from None
            raise EnvError(f"{self.server}{path}: {fault}") from None
        raise AssertionError("unreachable: the loop returns or raises")

    async def farewell(self, path: str, fields: Mapping[str, Any]) -> None:
        """Send once and listen to nothing: the server may be gone, or may not know the call."""
        self._left = True
        with suppress(_Fault):
            await self._send("POST", path, fields, min(self._timeout, FAREWELL))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _send(self, method: Method, path: str, fields: Mapping[str, Any], timeout: float) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=self.server,
                timeout=None,  # the whole call is timed below
                # Servers close connections that are idle for 5 s (uvicorn); a step must not be sent into one.
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=self._concurrency, keepalive_expiry=2.0
                ),
                headers={"Content-Type": "application/json"},
                trust_env=httpx.URL(self.server).host not in _LOCAL,  # a proxy cannot see this machine's servers
            )
        try:
            async with asyncio.timeout(timeout):
                if method == "GET":
                    response = await self._client.get(path, params=dict(fields))
                else:
                    # ensure_ascii also carries lone surrogates, which UTF-8 cannot.
                    response = await self._client.post(path, content=json.dumps(fields, ensure_ascii=True))
        except TimeoutError:
            raise _Fault("lost", f"no answer within {timeout:g} s") from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _Fault("unreached", f"cannot connect: {_clean(str(error)) or type(error).__name__}") from None
        except httpx.RequestError as error:
            raise _Fault("lost", f"the connection broke: {type(error).__name__}") from None
        self._answered = True
        if response.status_code >= 500:
            raise _Fault("answered", f"status {response.status_code}: {_clean(response.text)}")
        return response

    def _read(self, path: str, response: httpx.Response, shape: TypeAdapter[T]) -> T:
        if path == "/create" and response.status_code != 200:
            raise UserError(
                f"agent_r.env.server: {self.server} is no AgentGym server (status {response.status_code} for /create); "
                "mend the address."
            )
        if response.status_code != 200:
            raise EnvError(f"{self.server}{path}: status {response.status_code}: {_clean(response.text)}")
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            raise EnvError(f"{self.server}{path}: the answer is not JSON: {_clean(response.text)}") from None
        if isinstance(answer, dict) and answer.get("error"):
            said = _clean(str(answer["error"]))
            if path == "/create" and not self._left:
                raise UserError(
                    f"agent_r.env.server: {self.server} makes no environment ({said}); mend it there, or lower "
                    "agent_r.env.server_concurrency."
                )
            raise EnvError(f"{self.server}{path}: the server says: {said}")
        try:
            return shape.validate_python(answer)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "it"
            raise EnvError(
                f"{self.server}{path}: not this environment's protocol ({field}: {first['msg']}): {_clean(str(answer))}"
            ) from None


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


_ALWAYS: tuple[Fault, ...] = ("unreached", "answered", "lost")
_NOT_IF_UNDER_WAY: tuple[Fault, ...] = ("unreached", "answered")  # a reset that is lost may still be at work
_ONLY_IF_UNSEEN: tuple[Fault, ...] = ("unreached",)


class _RemoteSlot(ABC):
    """One environment on the server."""

    id_key: ClassVar[str] = "id"
    created: ClassVar[TypeAdapter[Any]] = TypeAdapter(_Id)

    def __init__(self, link: _Link, number: int) -> None:
        self._link = link
        self._me = {self.id_key: number}

    @classmethod
    async def open(cls, link: _Link) -> Slot:
        """Create an environment."""
        answer = await link.call("POST", "/create", {}, cls.created, _ALWAYS)
        return cls(link, answer if isinstance(answer, int) else answer.id)

    @abstractmethod
    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""

    @abstractmethod
    async def step(self, action: str) -> Step:
        """See ``Slot``."""

    async def close(self) -> None:
        """See ``Slot``. Older WebShop servers know no such call; that is their affair."""
        await self._link.farewell("/close", self._me)

    async def _reset(self, shape: type[T] | TypeAdapter[T], **task: Any) -> T:
        adapter = shape if isinstance(shape, TypeAdapter) else TypeAdapter(shape)
        return await self._link.call("POST", "/reset", {**self._me, **task}, adapter, _NOT_IF_UNDER_WAY)

    async def _step(self, shape: type[T], action: str) -> T:
        return await self._link.call(
            "POST", "/step", {**self._me, "action": action}, TypeAdapter(shape), _ONLY_IF_UNSEEN
        )


class TextCraftSlot(_RemoteSlot):
    """TextCraft's dialect. The reward is 1 when the goal is crafted."""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""
        return _text((await self._reset(_Begun, data_idx=task_id)).observation)

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
        return _text(f"{answer.task_description}\n{answer.observation}")

    async def step(self, action: str) -> Step:
        """See ``Slot``."""
        answer = await self._step(_SciWorldStepped, action)
        valid = not answer.observation.startswith(("No known action", "Ambiguous request"))
        return _outcome(answer.observation, answer.score, 100.0, answer.done, valid)


class WebShopSlot(_RemoteSlot):
    """WebShop's dialect: ids are plain numbers, a task is a ``session_id``, an observation a ``state``."""

    id_key = "env_idx"
    created = TypeAdapter(int)
    _begun: ClassVar[TypeAdapter[list[Any]]] = TypeAdapter(list[Any])
    _page = ""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``."""
        answer = await self._reset(self._begun, session_id=task_id)
        if not answer or not isinstance(answer[0], str):
            raise EnvError(f"{self._link.server}/reset: not this environment's protocol: {_clean(str(answer))}")
        self._page = _text(answer[0])
        return self._page

    async def step(self, action: str) -> Step:
        """See ``Slot``. The score is cut from the last page: no prompt may hold it (trap 16)."""
        answer = await self._step(_WebShopStepped, action)
        page = re.split(r" \[SEP\] (?:Reward \[SEP\] )?Your score", answer.state)[0] if answer.done else answer.state
        valid = page != self._page or await self._offered(action)
        self._page = _text(page)
        return _outcome(page, answer.reward, 1.0, answer.done, valid)

    async def _offered(self, action: str) -> bool:
        """Whether an action that left the page as it was made sense: the page looks alike with any option chosen."""
        match = re.match(r"(.+)\[(.+)\]", action.strip())
        if match is None or match[1] != "click":
            return match is not None and match[1] == "search"
        offered = await self._link.call("GET", "/available_actions", self._me, TypeAdapter(_Actions), _ALWAYS)
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
    return Step(_text(observation), reward, done or disaster, {"raw_score": raw, "valid": valid, "disaster": disaster})


def _address(server: str) -> str:
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL:
        raise UserError("agent_r.env.server is not an address; write it like http://127.0.0.1:36001.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"agent_r.env.server: {server!r} is no http(s) address; write it like http://127.0.0.1:36001.")
    if url.userinfo or url.query or url.fragment:
        raise UserError(
            f"agent_r.env.server: the address at {url.host} holds a password, a query or a fragment; "
            "write it like http://127.0.0.1:36001."
        )
    return str(url).rstrip("/")


def _text(text: str) -> str:
    """Lone surrogates are legal in JSON but could not be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _clean(text: str) -> str:
    return " ".join(_text(text).split())[:_SAY]
