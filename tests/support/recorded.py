"""An engine that keeps what it was asked, so that the bare requests can be timed without episodes."""

from __future__ import annotations

from typing import Any

from selfimprove.engines.base import Around, Completion, Request


class Recorded(Around):
    """``asked``: the requests that the engine answered (it refuses a dialogue that outgrows its context)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> list[Completion]:
        completions = await self._inner.generate(request)
        self.asked.append(request)
        return completions

    def forget_prefixes(self) -> None:
        self.inner.forget_prefixes()
