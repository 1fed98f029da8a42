r"""Serves an embedded environment with AgentGym's HTTP protocol, so that other clients can play on it.

A WebShop client's episode::

    POST /create                                          -> 0
    POST /reset {"env_idx": 0, "session_id": 7}           -> ["WebShop [SEP] Instruction: [SEP] ...", null]
    GET  /available_actions?env_idx=0                     -> {"has_search_bar": true, "clickables": ["search"]}
    POST /step {"env_idx": 0, "action": "search[shoes]"}  -> {"state": "...", "reward": 0.0, "done": false, ...}

All calls of AgentGym's three dialects are supported (docs/agent-r.md, A42), with their faults fixed, plus
``/valid_actions``, ``/look`` and ``/inventory``, which Agent-R calls and no AgentGym server had. As in the originals,
errors are answered with status 200 and ``{"error": "one sentence"}``. Ids count up from 0 and are never reused.
``/create`` accepts an empty body in every dialect, for which AgentGym's TextCraft server answers 422. There is no
access control: serve on 127.0.0.1 or inside a trusted network (``guard`` refuses requests of web pages).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import AgentEnv, EnvError
from selfimprove.envs.remote.dialects import Ask, Create, Dialect, Endpoint, Open, Refused, Which
from selfimprove.envs.remote.guard import BoundedProtocol, own_names, refusal

LONGEST_BODY = 1 << 20
"""Maximum bytes of a request."""

T = TypeVar("T")


class Environments:
    """The environments that clients hold, at most ``most``; if all are taken, the longest idle one is closed."""

    def __init__(
        self, make_env: Callable[[], AgentEnv], most: int, idle: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``idle``: seconds without a call after which an environment may be taken from its client."""
        self._make_env, self._most, self._idle, self._clock = make_env, most, idle, clock
        self._held: dict[int, Open] = {}
        self._making = 0
        self._next = 0

    def numbers(self) -> list[int]:
        """Ids of the held environments, ascending."""
        return sorted(self._held)

    async def create(self, run: Run) -> Open:
        """A new environment.

        Raises:
            Refused: there is no room, and no environment has been idle long enough.
        """
        while len(self._held) + self._making >= self._most:
            await self._close_idle(run)
        self._making += 1
        try:
            number, self._next = self._next, self._next + 1
            env = await run(self._make_env)
            self._held[number] = Open(number, env, self._clock())
            return self._held[number]
        finally:
            self._making -= 1

    @asynccontextmanager
    async def using(self, number: int) -> AsyncIterator[Open]:
        """One environment, locked for one call.

        Raises:
            Refused: it is not held, or no longer.
        """
        held = self._find(number)
        async with held.lock:
            self._find(number)  # it may have been closed while this call waited
            held.used = self._clock()
            try:
                yield held
            finally:
                held.used = self._clock()

    async def close(self, number: int, run: Run) -> None:
        """Close an environment. Raises: as ``using``."""
        async with self.using(number) as held:
            del self._held[number]
            await run(partial(close_env, held.env))

    async def close_all(self, run: Run) -> None:
        """Close all environments."""
        for number in self.numbers():
            await self.close(number, run)

    def _find(self, number: int) -> Open:
        if number in self._held:
            return self._held[number]
        if 0 <= number < self._next:
            raise Refused(f"The task with environment {number} has been deleted.")
        raise Refused(f"The id {number} is not valid.")

    async def _close_idle(self, run: Run) -> None:
        idle = [held for held in self._held.values() if not held.lock.locked()]
        oldest = min(idle, key=lambda held: held.used, default=None)
        if oldest is None or self._clock() - oldest.used < self._idle:
            raise Refused(f"all {self._most} environments are in use; close one, or start the server with more.")
        await self.close(oldest.number, run)


Run = Callable[[Callable[[], T]], Awaitable[T]]


def close_env(env: AgentEnv) -> None:
    """Close an environment if it has a ``close`` method; those that hold a process do."""
    close = getattr(env, "close", None)
    if close is not None:
        close()


def make_app(
    dialect: Dialect,
    make_env: Callable[[], AgentEnv],
    *,
    environments: int,
    idle: float,
    names: Collection[str] = own_names("localhost"),
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The server application.

    Args:
        dialect: the environment's (``dialects.Dialect``).
        make_env: creates a new copy of the environment.
        environments: maximum number held.
        idle: seconds without a call after which an environment may be closed if there is no room.
        names: allowed values of a request's Host, besides addresses.
        clock: time in seconds.
    """
    held = Environments(make_env, environments, idle, clock)

    async def run(work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work) if dialect.threads else work()

    async def create(request: Request) -> Any:
        _fields(Create, await _body(request), dialect)
        new = await held.create(run)
        try:
            return await run(partial(dialect.created, new))
        except Exception:
            await held.close(new.number, run)  # its client will never learn the number
            raise

    async def close(request: Request) -> Any:
        await held.close(_fields(Which, await _body(request), dialect).id, run)
        return dialect.closed

    async def answer(endpoint: Endpoint, request: Request) -> Any:
        given = await _body(request) if endpoint.method == "POST" else dict(request.query_params)
        fields = _fields(endpoint.fields, given, dialect)
        async with held.using(fields.id) as environment:
            return await run(partial(endpoint.answer, environment, fields))

    async def hello(request: Request) -> Any:
        return dialect.greeting

    async def list_envs(request: Request) -> Any:
        return held.numbers()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await held.close_all(run)

    routes = [
        _route("GET", "/", hello, names),
        _route("POST", "/create", create, names),
        _route("POST", "/close", close, names),
        _route("GET", "/list_envs", list_envs, names),
        *(_route(one.method, one.path, partial(answer, one), names) for one in dialect.endpoints),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for the server; port 0: any free port.

    Raises:
        UserError: the host is empty, the port is taken or forbidden, or the address does not belong to this machine.
    """
    if not host:  # an unset shell variable must not open the server to every network
        raise UserError("the host is empty; name an address, such as 127.0.0.1, or 0.0.0.0 for all networks.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}, port {port} ({os.strerror(error.errno or 0)}); choose another port."
        ) from None
    # An answer's header and body are two packets: otherwise the second waits 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(host: str, port: int) -> str:
    """The address of a server that listens there, as ``env.server`` takes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_config(app: Starlette, **more: Any) -> uvicorn.Config:
    """uvicorn's settings: limits on connections and time, and a log of its own errors only."""
    return uvicorn.Config(app, http=BoundedProtocol, log_level="error", access_log=False, **more)


def _route(method: str, path: str, work: Callable[[Request], Awaitable[Any]], names: Collection[str]) -> Route:
    async def respond(request: Request) -> Response:
        try:
            if (reason := refusal(request, names)) is not None:
                raise Refused(reason)
            answer = await work(request)
        except (Refused, UserError, EnvError) as error:
            answer = {"error": str(error)}
        except Exception as error:  # our own fault ends one call, not the server
            answer = {"error": f"{type(error).__name__}: {error}"}
        # ASCII, because an observation may repeat a lone surrogate of the action, which UTF-8 cannot encode.
        return Response(json.dumps(answer, ensure_ascii=True), media_type="application/json")

    return Route(path, respond, methods=[method])


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in a request; {} for an empty body."""
    raw = b""
    try:
        async with asyncio.timeout(BoundedProtocol.patience):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > LONGEST_BODY:
                    raise Refused(f"the request is longer than {LONGEST_BODY} bytes.")
    except TimeoutError:
        raise Refused(f"the request did not end within {BoundedProtocol.patience:g} s.") from None
    try:
        given = json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError):
        raise Refused("the request is not JSON.") from None
    if not isinstance(given, dict):
        raise Refused("the request is no JSON object.")
    return given


F = TypeVar("F", bound=Ask)


def _fields(schema: type[F], given: Mapping[str, Any], dialect: Dialect) -> F:
    ours = {theirs: name for name, theirs in dialect.renamed.items()}
    try:
        return schema.model_validate({ours.get(key, key): value for key, value in given.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "the request"
        raise Refused(f"{dialect.renamed.get(name, name)}: {first['msg']}.") from None
