"""Runs a worker process that answers long prompts in bursts that are larger than a connection's buffer."""

from __future__ import annotations

import asyncio

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineStats, Request
from selfimprove.engines.cluster.dispatch import Share
from selfimprove.engines.cluster.replicas import ReplicatedEngine
from selfimprove.engines.cluster.worker import WorkerSpec

BURST, TURNS, TOKENS = 64, 4, 500


class Bursts:
    """Answers no call before ``BURST`` calls wait, like an engine whose sequences all end in the same step."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self._waiting: list[asyncio.Future[None]] = []

    async def generate(self, request: Request) -> list[Completion]:
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        if len(self._waiting) == BURST:
            for one in self._waiting:
                one.set_result(None)
            self._waiting = []
        await answered
        return [Completion("word " * TOKENS, "stop", list(range(1000, 1000 + TOKENS)), [-0.5] * TOKENS)]


async def main() -> None:
    spec, share = WorkerSpec(Bursts), Share(BURST, BURST // 4, 8192)  # type: ignore[arg-type]
    engine = ReplicatedEngine([spec], share, None, name="bursts", remedy="none", start="fork")  # type: ignore[arg-type]

    async def episode(number: int) -> None:
        for turn in range(TURNS):
            message = Message(role="user", content="word " * 3000)
            await engine.generate(Request([message], SeedKey(1, f"t{number}", turn)))

    await asyncio.gather(*(episode(number) for number in range(2 * BURST)))
    await engine.close()
    print("answered")


if __name__ == "__main__":
    asyncio.run(main())
