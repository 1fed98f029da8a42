"""One AgentGym server over HTTP: sends calls, retries them if that is safe, and reports errors.

Whether a call may be sent again depends on the call and on how it failed (``Fault``). A ``/step`` is never sent again;
instead, the episode is replayed in another environment (``envs/replay.py``). Errors arrive with status 200 and a body
``{"error": ...}``.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

import httpx
import tenacity
from pydantic import TypeAdapter, ValidationError

from selfimprove.core.address import DIRECT, TooLong, checked_address, client_settings, reads_environment, whole
from selfimprove.core.errors import UserError, fault, printable_line
from selfimprove.core.records import plain_text
from selfimprove.envs.interface import EnvError

TRIES = 4
"""Maximum attempts for a call that may be sent again."""

FAREWELL = 5.0
"""Time limit for closing an environment, in seconds; a server that takes longer keeps it."""

_SAY = 300  # maximum characters of a server's text in an error

T = TypeVar("T")
Method = Literal["GET", "POST"]
Fault = Literal["unreached", "answered", "lost"]
"""The server never received the call; it failed on it (5xx); or unknown (no answer in time, broken connection)."""

ALWAYS: tuple[Fault, ...] = ("unreached", "answered", "lost")
IF_ANSWERED: tuple[Fault, ...] = ("answered",)
"""For ``/reset``: a lost one may still be running; a server that was away may have dropped the environment."""
NEVER: tuple[Fault, ...] = ()


class _Fault(Exception):
    """A call that failed."""

    def __init__(self, kind: Fault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Link:
    """Calls to one server; any number may run concurrently."""

    def __init__(self, server: str, concurrency: int, timeout: float, backoff: float) -> None:
        """``concurrency``: connections kept alive; ``timeout``, ``backoff``: see ``RemoteSlot.world``.

        Raises:
            UserError: ``server`` is not a plain http(s) address.
        """
        self.server = str(checked_address("env.server", server, "http://127.0.0.1:36001")).rstrip("/")
        self._timeout, self._backoff, self._concurrency = timeout, backoff, concurrency
        self._client: httpx.AsyncClient | None = None
        self.absences = 0
        """How often the server was unreachable. It may have restarted, and its ids may mean new environments."""
        self._answered = False
        self._left = False  # an environment was abandoned, and may still take up room on the server

    async def call(
        self, method: Method, path: str, fields: Mapping[str, Any], shape: TypeAdapter[T], again: tuple[Fault, ...]
    ) -> T:
        """The answer to one call, validated as a ``shape``.

        ``fields`` are sent as the body or, in a GET, as the query; ``again`` lists the faults after which the call may
        be sent again.

        Raises:
            EnvError: the call failed permanently, or the answer is an error or not a ``shape``.
            UserError: the server has never answered, or is not an AgentGym server.
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
                    f"env.server: nothing answers at {self.server} ({fault}); start the server there (make serve "
                    "ENV=... PORT=...), or set null to use the embedded environment."
                ) from None
            raise EnvError(f"{self.server}{path}: {fault}") from None
        raise AssertionError("unreachable: the loop returns or raises")

    async def farewell(self, fields: Mapping[str, Any]) -> None:
        """Send ``/close`` once and ignore the answer: the server may be gone, or may not support the call."""
        self._left = True
        with suppress(_Fault):
            await self._send("POST", "/close", fields, min(self._timeout, FAREWELL))

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _send(self, method: Method, path: str, fields: Mapping[str, Any], timeout: float) -> httpx.Response:
        if self._client is None:
            trusted = reads_environment(httpx.URL(self.server))
            with client_settings(read=trusted):
                self._client = httpx.AsyncClient(
                    base_url=self.server,
                    timeout=None,  # the whole call is timed below
                    # Servers close connections that are idle for 5 s (uvicorn); a call on such a connection is lost.
                    limits=httpx.Limits(
                        max_connections=None, max_keepalive_connections=self._concurrency, keepalive_expiry=2.0
                    ),
                    headers={"Content-Type": "application/json"},
                    verify=self.server.startswith("https"),  # loading certificates takes 0.3 s
                    trust_env=trusted,
                    mounts=DIRECT,
                )
        try:
            async with asyncio.timeout(timeout):
                # ensure_ascii also escapes lone surrogates, which UTF-8 cannot encode.
                content = None if method == "GET" else json.dumps(fields, ensure_ascii=True)
                query = dict(fields) if method == "GET" else None
                async with self._client.stream(method, path, params=query, content=content) as answer:
                    response = await whole(answer)
        except TimeoutError:
            raise _Fault("lost", f"no answer within {timeout:g} s") from None
        except TooLong as error:
            raise _Fault("lost", str(error)) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self.absences += 1
            raise _Fault("unreached", f"cannot connect: {in_short(str(error)) or type(error).__name__}") from None
        except httpx.RequestError as error:
            raise _Fault("lost", f"the connection broke: {type(error).__name__}") from None
        except httpx.InvalidURL:  # httpx also reads the address of a redirect that it does not follow
            raise _Fault("lost", "the answer is a redirect to something that is no address") from None
        self._answered = True
        if response.status_code >= 500:
            raise _Fault("answered", f"status {response.status_code}: {in_short(response.text)}")
        return response

    def _read(self, path: str, response: httpx.Response, shape: TypeAdapter[T]) -> T:
        if path == "/create" and response.status_code != 200:
            raise UserError(
                f"env.server: {self.server} is not an AgentGym server (status {response.status_code} for /create); fix "
                "the address."
            )
        if response.status_code != 200:
            raise EnvError(f"{self.server}{path}: status {response.status_code}: {in_short(response.text)}")
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            raise EnvError(f"{self.server}{path}: the answer is not JSON: {in_short(response.text)}") from None
        if isinstance(answer, dict) and answer.get("error"):
            said = in_short(str(answer["error"]))
            if path == "/create" and not self._left:
                raise UserError(
                    f"env.server: {self.server} cannot create an environment ({said}); fix the server, or lower "
                    "env.server_concurrency."
                )
            raise EnvError(f"{self.server}{path}: the server says: {said}")
        try:
            return shape.validate_python(answer)
        except ValidationError as error:
            what = f"{fault(error)}: {in_short(str(answer))}"
            raise EnvError(f"{self.server}{path}: not this environment's protocol: {what}") from None


def in_short(text: str) -> str:
    """A server's text for a message: one line, without terminal control characters."""
    return printable_line(plain_text(text[: 10 * _SAY]))[:_SAY]
