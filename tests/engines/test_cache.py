"""The cache of greedy completions: failures and cancelled callers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request
from selfimprove.engines.cache import RememberingEngine


class Gated:
    """Answers once ``go`` is set; its first request fails if it asks for a single token."""

    def __init__(self) -> None:
        self.stats, self.go, self.asked = EngineStats(), asyncio.Event(), 0

    async def generate(self, request: Request) -> list[Completion]:
        self.asked += 1
        await self.go.wait()
        if self.asked == 1 and request.max_tokens == 1:
            raise EngineError("gone")
        return [Completion("answer", "stop")]

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return True

    async def close(self) -> None: ...


def ask(max_tokens: int) -> Request:
    return Request([Message(role="user", content="a")], SeedKey(1, "t"), temperature=0.0, max_tokens=max_tokens)


def test_a_failure_is_not_cached() -> None:
    async def work() -> None:
        inner = Gated()
        inner.go.set()
        engine = RememberingEngine(inner)
        with pytest.raises(EngineError):
            await engine.generate(ask(1))
        assert (await engine.generate(ask(1)))[0].text == "answer"

    asyncio.run(work())


def test_a_message_without_generated_ids_differs_from_one_whose_ids_are_none_at_all() -> None:
    """An answer that a stop string cut inside its first token has text and no ids, so its prompt is another one."""

    async def work() -> int:
        inner = Gated()
        inner.go.set()
        engine = RememberingEngine(inner)
        given: list[list[int] | None] = [None, [], None, []]
        for token_ids in given:
            said = Message(role="assistant", content="a", token_ids=token_ids)
            await engine.generate(replace(ask(2), messages=[said]))
        return inner.asked

    assert asyncio.run(work()) == 2


def test_a_cancelled_caller_does_not_cancel_the_answer_that_others_wait_for() -> None:
    async def work() -> None:
        inner = Gated()
        engine = RememberingEngine(inner)
        first, second = (asyncio.create_task(engine.generate(ask(2))) for _ in range(2))
        await asyncio.sleep(0)  # both now wait for the same request
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        inner.go.set()
        assert (await second)[0].text == "answer"
        assert inner.asked == 1

    asyncio.run(work())
