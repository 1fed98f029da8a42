"""An engine that is created at its first request: a stage whose journal answers everything loads no model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from selfimprove.engines.base import Completion, Engine, EngineStats, Request, Templated

if TYPE_CHECKING:
    from selfimprove.core.chat import ChatFormat


class LazyEngine(Templated):
    """Implements ``engines.base.Engine``: prompts can be encoded immediately; the first request creates the engine."""

    def __init__(self, make: Callable[[], Engine], chat: ChatFormat, context: int) -> None:
        """``make`` runs once, in its own thread, so that the event loop continues while a model loads."""
        self.chat, self.context = chat, context
        self._make = make
        self._making: asyncio.Future[Engine] | None = None
        self._engine: Engine | None = None

    @property
    def stats(self) -> EngineStats:
        """The engine's counts; zeros before it is created."""
        return EngineStats() if self._engine is None else self._engine.stats

    async def generate(self, request: Request) -> list[Completion]:
        """Like the engine. Raises: as the engine; if creating it failed, every call raises that error."""
        if self._engine is None:
            if self._making is None:
                self._making = asyncio.wrap_future(self._made())
            # A cancelled caller must not cancel the creation that others wait for.
            self._engine = await asyncio.shield(self._making)
        return await self._engine.generate(request)

    async def close(self) -> None:
        """Close the engine, if it exists or is being created."""
        if self._making is not None:
            await asyncio.wait([self._making])
            if self._making.exception() is None:
                await self._making.result().close()

    def _made(self) -> Future[Engine]:
        """Create it in a daemon thread: asyncio's own threads would keep an interrupted stage alive."""
        made: Future[Engine] = Future()

        def work() -> None:
            try:
                made.set_result(self._make())
            except BaseException as error:  # raised in generate
                made.set_exception(error)

        threading.Thread(target=work, name="make an engine", daemon=True).start()
        return made
