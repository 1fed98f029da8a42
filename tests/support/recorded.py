"""An engine that keeps what it was asked, so that the bare requests can be timed without episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selfimprove.core.records import Message
from selfimprove.engines.base import Completion, EngineStats, Request


@dataclass
class Recorded:
    """``asked``: the requests that the engine answered (it refuses a dialogue that outgrows its context)."""

    inner: Any
    asked: list[Request] = field(default_factory=list)

    @property
    def stats(self) -> EngineStats:
        """The inner engine's."""
        stats: EngineStats = self.inner.stats
        return stats

    async def generate(self, request: Request) -> list[Completion]:
        """As the inner engine."""
        completions: list[Completion] = await self.inner.generate(request)
        self.asked.append(request)
        return completions

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """As the inner engine."""
        return bool(self.inner.fits(messages, max_tokens))

    def forget_prefixes(self) -> None:
        """As the inner engine."""
        self.inner.forget_prefixes()

    async def close(self) -> None:
        """As the inner engine."""
        await self.inner.close()
