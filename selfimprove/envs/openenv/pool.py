"""The sessions of this process on an OpenEnv server, shared by all its users.

They run on an event loop in a separate thread, so that the same sessions serve coroutines (a method's episodes) and
synchronous calls (experts, listed actions, the check at the start): a server accepts only a limited number.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.openenv.link import FAREWELL, Server
from selfimprove.envs.openenv.session import Rules, Session
from selfimprove.envs.replay import ReplayState, ReplayStats, ReplayWorld, Slot

T = TypeVar("T")


class Pool:
    """The sessions on one server with one set of rules; they are opened when needed."""

    def __init__(self, name: str, instruction: str, server: Server, rules: Rules, sessions: int, retries: int) -> None:
        """``name``: for outputs; ``sessions``: maximum concurrent sessions; ``retries``: see ``Session``."""

        async def make_slot() -> Slot:
            return Session(server, rules, retries)

        self.name, self.instruction = name, instruction
        self._server, self._sessions, self._make_slot = server, sessions, make_slot
        self.ways: dict[tuple[int, tuple[str, ...]], list[str]] = {}
        """Paths found by experts, by task and the actions since its start."""
        self._world: ReplayWorld | None = None
        self._players = 0
        self._process = os.getpid()
        self._loop = _loop(self._process)
        atexit.register(self._end)

    def current(self) -> ReplayWorld:
        """The current replay world; its methods must run on the pool's loop."""
        if self._world is None:
            self._world = ReplayWorld(self.name, self.instruction, self._make_slot, self._sessions)
        return self._world

    def now(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the pool's loop and wait for its result.

        Raises:
            UserError: also when the environment fails, because a synchronous caller cannot continue.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except EnvError as error:
            raise UserError(f"{error}; check the server's output.") from None

    async def soon(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a coroutine of another loop, which is not blocked."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def join(self) -> OpenEnvWorld:
        """A world for a method; the sessions end when the last one is closed."""
        self._players += 1
        return OpenEnvWorld(self)

    async def leave(self) -> None:
        """Counterpart of ``join``, when a world is closed."""
        self._players -= 1
        if self._players == 0:
            await self.soon(self._close())

    async def _close(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            await world.close()
        await self._server.close()

    def _end(self) -> None:
        """At exit: close the sessions, with a time limit. A forked process does not have the loop's thread."""
        if os.getpid() != self._process:
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(FAREWELL)


class OpenEnvWorld:
    """Implements ``World`` on a pool's sessions."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.name, self.instruction = pool, pool.name, pool.instruction
        self._world = pool.current()
        self._closed = False

    @property
    def stats(self) -> ReplayStats:
        """Counts of the pool's sessions while this world was open."""
        return self._world.stats

    async def reset(self, task_id: int) -> tuple[ReplayState, str]:
        """See ``World``."""
        state, seen = await self._pool.soon(self._world.reset(task_id))
        return state, str(seen)

    async def step(self, state: ReplayState, action: str) -> tuple[ReplayState, Step]:
        """See ``World``."""
        after, step = await self._pool.soon(self._world.step(state, action))
        return after, step._replace(observation=str(step.observation))

    async def close(self) -> None:
        """See ``World``."""
        if not self._closed:
            self._closed = True
            await self._pool.leave()


_POOLS: dict[tuple[int, str], Pool] = {}


def pool(key: str, make: Callable[[], Pool]) -> Pool:
    """The process's pool for a key; other processes, including forked ones, have their own sessions."""
    place = (os.getpid(), key)
    if place not in _POOLS:
        _POOLS[place] = make()
    return _POOLS[place]


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The event loop of a process, which runs in its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openenv", daemon=True).start()
    return loop
