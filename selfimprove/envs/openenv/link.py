"""One OpenEnv server and its sessions, each a WebSocket that exchanges JSON messages (openenv-core 0.3).

A session of a counting game (client's message -> server's answer)::

    {"type": "reset", "data": {"seed": 7}}    -> {"type": "observation", "data": {"observation":
                                                  {"text": "The goal is 9."}, "reward": null, "done": false}}
    {"type": "step", "data": {"word": "add one"}} -> {"type": "observation", "data": {"observation":
                                                      {"text": "You are at 1."}, "reward": 0.0, "done": false}}
    {"type": "step", "data": {"wrd": "double"}} -> {"type": "error", "data": {"message": "Invalid message",
                                                    "code": "VALIDATION_ERROR", "errors": [{"type": "missing", …}]}}
    {"type": "close"}

The server creates an environment for each connection and drops it when the connection ends. It accepts the number of
concurrent sessions that it was started with (``max_concurrent_envs``, by default 1), and sends an error to others.
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

from selfimprove.core.address import LOCAL
from selfimprove.core.errors import UserError, fault
from selfimprove.envs.interface import EnvError
from selfimprove.envs.remote.link import in_short

FAREWELL = 5.0
"""Seconds that closing a session may take."""

_UNREAD = 8  # maximum buffered messages that the server sent without a request


class Dropped(Exception):
    """There is no connection, or it broke; a new one may be made."""


class Refused(Exception):
    """The server answered with an error.

    Attributes:
        code: VALIDATION_ERROR, EXECUTION_ERROR, CAPACITY_REACHED, …
        faults: for a message that the server could not parse: (kind, field) pairs.
    """

    def __init__(self, code: str, said: str, faults: list[tuple[str, str]]) -> None:
        super().__init__(said)
        self.code, self.faults = code, faults


class Told(BaseModel):
    """An answer to reset or step; further fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False

    @field_validator("reward", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return float(value) if isinstance(value, bool) else value


class Server:
    """Creates connections to one server."""

    def __init__(self, name: str, timeout: float, most_bytes: int) -> None:
        """``name``: ``openenv:`` and the address, for messages; ``timeout``: seconds per call.

        ``most_bytes``: maximum size of a message from the server.
        """
        self.name, self.timeout, self.most_bytes = name, timeout, most_bytes
        self.answered = False
        """Whether it has ever answered in its protocol."""
        self._address = name.partition(":")[2].rstrip("/")
        self._client: aiohttp.ClientSession | None = None

    async def connect(self) -> Connection:
        """A connection, and thus a session.

        Raises:
            Dropped: nothing answers now.
            UserError: something other than an OpenEnv server answers, or the host or a proxy cannot be used.
        """
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the session pool limits connections
                trust_env=urlsplit(self._address).hostname not in LOCAL,
            )
        try:
            async with asyncio.timeout(self.timeout):
                socket = await self._client.ws_connect(
                    f"{self._address}/ws",
                    max_msg_size=self.most_bytes,
                    compress=0,  # a small message cannot expand to a large one
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
        except (AssertionError, ValueError) as error:  # aiohttp's, for a host or proxy that it cannot use
            reason = in_short(str(error)) or "the proxy is none that aiohttp can use"
            raise UserError(
                f"{self.name} can't be called ({reason}); fix the address in env.name, or correct or unset HTTP_PROXY "
                "and HTTPS_PROXY (also in lower case)."
            ) from None
        return Connection(self, socket)

    async def close(self) -> None:
        """Release the client's resources, after all connections are closed."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


class Connection:
    """One session, for one call at a time."""

    def __init__(self, server: Server, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._server, self._socket = server, socket
        self._answers: asyncio.Queue[aiohttp.WSMessage | None] = asyncio.Queue(_UNREAD)
        self._over = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Read continuously: pings are answered only while reading, and servers close connections without answers."""
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
            EnvError: no answer in time, or one that does not follow the protocol.
            UserError: the answer is too long.
        """
        # A full server reports this and closes, so that sending fails but its error can still be read.
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
        """End the session, even if the server is gone."""
        self._reader.cancel()
        await asyncio.wait([self._reader])
        with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._socket.send_str('{"type": "close"}')
                await self._socket.close()


def _faults(error: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The server's list of a message's faults: (kind, field)."""
    listed = error.get("errors")
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [
        (str(one.get("type")), ".".join(map(str, one["loc"] if isinstance(one.get("loc"), list) else ())))
        for one in found
    ]
