"""An engine that is made at its first request: a stage whose journal answers everything loads no model."""

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
    """Implements ``engines.base.Engine``: templates from the start, the engine itself from the first request on."""

    def __init__(self, make: Callable[[], Engine], chat: ChatFormat, context: int) -> None:
        """``make`` runs once, in a thread of its own, so that the event loop goes on while a model loads."""
        self.chat, self.context = chat, context
        self._make = make
        self._making: asyncio.Future[Engine] | None = None
        self._engine: Engine | None = None

    @property
    def stats(self) -> EngineStats:
        """The engine's counts; zeros before it is made."""
        return EngineStats() if self._engine is None else self._engine.stats

    async def generate(self, request: Request) -> list[Completion]:
        """As the engine. Raises: as the engine, and for every call what making it has raised."""
        if self._engine is None:
            if self._making is None:
                self._making = asyncio.wrap_future(self._made())
            # A caller that goes away must not stop what others wait for.
            self._engine = await asyncio.shield(self._making)
        return await self._engine.generate(request)

    async def close(self) -> None:
        """Close the engine, if there is one or one is being made."""
        if self._making is not None:
            await asyncio.wait([self._making])
            if self._making.exception() is None:
                await self._making.result().close()

    def _made(self) -> Future[Engine]:
        """Make it in a thread that does not keep an interrupted stage alive, as those of asyncio would."""
        made: Future[Engine] = Future()

        def work() -> None:
            try:
                made.set_result(self._make())
            except BaseException as error:  # raised where the engine is asked
                made.set_exception(error)

        threading.Thread(target=work, name="make an engine", daemon=True).start()
        return made
