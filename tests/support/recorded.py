"""An engine that records its requests, so that they can be timed without episodes."""

from __future__ import annotations

from typing import Any

from selfimprove.engines.base import Around, Completion, Request


class Recorded(Around):
    """``asked``: the answered requests (a dialogue that exceeds the engine's context is refused)."""

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
