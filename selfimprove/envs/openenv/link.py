"""One OpenEnv server: its sessions, each a WebSocket over which JSON messages go (openenv-core 0.3).

A session of a counting game (client's message -> server's answer)::

    {"type": "reset", "data": {"seed": 7}}    -> {"type": "observation", "data": {"observation":
                                                  {"text": "The goal is 9."}, "reward": null, "done": false}}
    {"type": "step", "data": {"word": "add one"}} -> {"type": "observation", "data": {"observation":
                                                      {"text": "You are at 1."}, "reward": 0.0, "done": false}}
    {"type": "step", "data": {"wrd": "double"}} -> {"type": "error", "data": {"message": "Invalid message",
                                                    "code": "VALIDATION_ERROR", "errors": [{"type": "missing", …}]}}
    {"type": "close"}

The server makes an environment for each connection and forgets it with the connection. It takes so many sessions at
once as it was started with (``max_concurrent_envs``, 1 unless told otherwise) and answers others by one error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from selfimprove.core.errors import UserError, fault
from selfimprove.envs.interface import EnvError
from selfimprove.envs.remote.link import in_short

FAREWELL = 5.0
"""Seconds that closing a session may take."""

_LOCAL = ("localhost", "127.0.0.1", "::1")
_UNREAD = 8  # messages of the server that nobody asked for, kept at most


class Dropped(Exception):
    """There is no connection, or no longer: another may be made."""


class Refused(Exception):
    """The server answered with an error.

    Attributes:
        code: VALIDATION_ERROR, EXECUTION_ERROR, CAPACITY_REACHED, …
        faults: of a message that it could not read: (kind, field) pairs.
    """

    def __init__(self, code: str, said: str, faults: list[tuple[str, str]]) -> None:
        super().__init__(said)
        self.code, self.faults = code, faults


class Told(BaseModel):
    """An answer to reset or step; servers may send more."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False

    @field_validator("reward", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return float(value) if isinstance(value, bool) else value


class Server:
    """Makes connections to one server."""

    def __init__(self, name: str, timeout: float, most_bytes: int) -> None:
        """``name``: ``openenv:`` and the address, for messages; ``timeout``: seconds a call may take.

        ``most_bytes``: of a message of the server, at most.
        """
        self.name, self.timeout, self.most_bytes = name, timeout, most_bytes
        self.answered = False
        """Whether it ever answered in its protocol."""
        self._address = name.partition(":")[2].rstrip("/")
        self._client: aiohttp.ClientSession | None = None

    async def connect(self) -> Connection:
        """A connection, and so a session.

        Raises:
            Dropped: nothing answers now.
            UserError: something else than an OpenEnv server does.
        """
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the pool of sessions has the limit
                trust_env=urlsplit(self._address).hostname not in _LOCAL,  # a proxy cannot see this machine's servers
            )
        try:
            async with asyncio.timeout(self.timeout):
                socket = await self._client.ws_connect(
                    f"{self._address}/ws",
                    max_msg_size=self.most_bytes,
                    compress=0,  # a small message can't unfold to a large one
                    timeout=aiohttp.ClientWSTimeout(ws_close=FAREWELL),
                )
        except TimeoutError:
            raise Dropped(f"no connection within {self.timeout:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status >= 500:
                raise Dropped(f"status {error.status}") from None
            raise UserError(
                f"{self.name} is not an OpenEnv server (status {error.status} for /ws); fix the address in env.name."
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Dropped(f"cannot connect: {in_short(str(error)) or type(error).__name__}") from None
        return Connection(self, socket)

    async def close(self) -> None:
        """Give the connections' resources back, after all of them are closed."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


class Connection:
    """One session. One call at a time."""

    def __init__(self, server: Server, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._server, self._socket = server, socket
        self._answers: asyncio.Queue[aiohttp.WSMessage | None] = asyncio.Queue(_UNREAD)
        self._over = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Read all the time: pings are answered only by who reads, and a server closes where none is answered."""
        try:
            async for message in self._socket:
                await self._answers.put(message)
        finally:
            self._over = True
            with suppress(asyncio.QueueFull):
                self._answers.put_nowait(None)

    async def ask(self, kind: Literal["reset", "step"], fields: Mapping[str, Any]) -> Told:
        """Send a message and wait for the answer.

        Raises:
            Dropped: the connection broke.
            Refused: the answer is an error.
            EnvError: no answer in time, or one that is not of this protocol.
            UserError: the answer is too long.
        """
        # A server that is full says so and closes, so that nothing can be sent any more, but that can still be read.
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.send_str(json.dumps({"type": kind, "data": fields}))
        if self._over and self._answers.empty():
            raise Dropped("the connection broke")
        try:
            async with asyncio.timeout(self._server.timeout):
                message = await self._answers.get()
        except TimeoutError:
            raise EnvError(f"{self._server.name}: no answer to {kind} within {self._server.timeout:g} s") from None
        if message is None:
            raise Dropped("the connection broke")
        if message.type is aiohttp.WSMsgType.ERROR:
            if getattr(message.data, "code", None) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                raise UserError(
                    f"{self._server.name}: the answer to {kind} is longer than {self._server.most_bytes} bytes; raise "
                    "env.max_message, or choose an environment with shorter messages."
                )
            raise Dropped(f"the connection broke: {in_short(str(message.data))}")
        return self._understood(kind, message.data)

    def _understood(self, kind: str, data: object) -> Told:
        try:
            answer = json.loads(data) if isinstance(data, str) else None
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and isinstance(inner := answer.get("data"), dict):
            self._server.answered = True
            if answer.get("type") == "error":
                raise Refused(
                    in_short(str(inner.get("code", ""))), in_short(str(inner.get("message", ""))), _faults(inner)
                )
            try:
                return Told.model_validate(inner)
            except ValidationError as error:
                raise EnvError(f"{self._server.name}: the answer to {kind} is not OpenEnv's ({fault(error)})") from None
        raise EnvError(f"{self._server.name}: the answer to {kind} is not OpenEnv's: {in_short(str(data))}")

    async def close(self) -> None:
        """End the session; the server may be gone."""
        self._reader.cancel()
        await asyncio.wait([self._reader])
        with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._socket.send_str('{"type": "close"}')
                await self._socket.close()


def _faults(error: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with a message, as the server lists it: (kind, field)."""
    listed = error.get("errors")
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [
        (str(one.get("type")), ".".join(map(str, one["loc"] if isinstance(one.get("loc"), list) else ())))
        for one in found
    ]
