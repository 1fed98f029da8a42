"""An engine that is created at its first request: once for all callers, and never if a journal answers them all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.lazy import LazyEngine
from selfimprove.engines.scripted import ScriptedEngine

QUESTION = [Message(role="user", content="3 + 4?")]


class Maker:
    """Creates an engine, or raises ``error``, once ``go`` is set; records the thread of each call."""

    def __init__(self, error: Exception | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self.go = threading.Event()
        self._error = error

    def __call__(self) -> Engine:
        self.threads.append(threading.current_thread())
        assert self.go.wait(60)
        if self._error is not None:
            raise self._error
        return ScriptedEngine(lambda request, index: f"{request.seed.task} {index}")


def ask(index: int) -> Request:
    return Request(QUESTION, SeedKey(1, f"task {index}"))


async def all_of(engine: Engine, count: int = 5) -> list[list[Completion]]:
    return await asyncio.gather(*(engine.generate(ask(index)) for index in range(count)))


def test_concurrent_callers_create_one_engine_in_a_thread_without_blocking_the_event_loop(chat: ChatFormat) -> None:
    maker = Maker()

    async def work() -> list[list[Completion]]:
        engine = LazyEngine(maker, chat, 64)
        answers = asyncio.create_task(all_of(engine))
        await asyncio.sleep(0.01)
        assert engine.stats.requests == 0, "stats, fits and prompts need no engine"
        assert engine.fits(QUESTION, 64 - engine.prompt_tokens(QUESTION))
        assert not engine.fits(QUESTION, 65 - engine.prompt_tokens(QUESTION))
        maker.go.set()  # from the event loop, which was never blocked
        result = await answers
        assert engine.stats.requests == 5
        await engine.close()
        return result

    assert [[c.text for c in one] for one in asyncio.run(work())] == [[f"task {i} 0"] for i in range(5)]
    assert len(maker.threads) == 1
    assert maker.threads[0] is not threading.main_thread()


def test_no_engine_is_created_if_the_journal_answers_every_request(chat: ChatFormat, tmp_path: Path) -> None:
    def run(make: Callable[[], Engine], count: int) -> list[list[Completion]]:
        async def work() -> list[list[Completion]]:
            with Journal(tmp_path / "journal") as journal:
                engine = JournaledEngine(LazyEngine(make, chat, 64), journal, "student")
                assert engine.fits(QUESTION, 8)
                try:
                    return await all_of(engine, count)
                finally:
                    await engine.close()

        return asyncio.run(work())

    first, again = Maker(), Maker()
    first.go.set()
    answers = run(first, 3)
    assert run(again, 3) == answers
    assert again.threads == []
    again.go.set()
    assert run(again, 4)[:3] == answers, "one request is new"
    assert len(again.threads) == 1


def test_a_failed_creation_is_not_retried_and_gives_every_caller_the_same_error(chat: ChatFormat) -> None:
    maker = Maker(UserError("the model does not load; restore it."))
    maker.go.set()

    async def work() -> list[object]:
        engine = LazyEngine(maker, chat, 64)
        errors: list[object] = await asyncio.gather(
            *(engine.generate(ask(i)) for i in range(4)), return_exceptions=True
        )
        errors += await asyncio.gather(engine.generate(ask(9)), return_exceptions=True)
        await engine.close()
        return errors

    errors = asyncio.run(work())
    assert {str(error) for error in errors} == {"the model does not load; restore it."}
    assert all(isinstance(error, UserError) for error in errors)
    assert len(maker.threads) == 1


def test_a_cancelled_caller_stops_neither_the_creation_nor_other_callers(chat: ChatFormat) -> None:
    maker = Maker()

    async def work() -> list[Completion]:
        engine = LazyEngine(maker, chat, 64)
        gone, stays = (asyncio.create_task(engine.generate(ask(i))) for i in range(2))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled()
        maker.go.set()
        result = await stays
        await engine.close()
        return result

    assert [c.text for c in asyncio.run(work())] == ["task 1 0"]


def test_an_engine_closed_during_its_creation_is_closed_once_it_is_created(chat: ChatFormat) -> None:
    closed: list[Engine] = []

    class Closing(ScriptedEngine):
        async def close(self) -> None:
            closed.append(self)

    began, go = threading.Event(), threading.Event()

    def make() -> Engine:
        began.set()
        assert go.wait(60)
        return Closing(lambda request, index: "")

    async def work() -> None:
        engine = LazyEngine(make, chat, 64)
        asking = asyncio.create_task(engine.generate(ask(0)))
        await asyncio.to_thread(began.wait, 60)
        asking.cancel()
        threading.Timer(0.05, go.set).start()
        await engine.close()
        assert len(closed) == 1

    asyncio.run(work())


def test_a_stage_interrupted_while_a_model_loads_exits_without_waiting_for_it() -> None:
    code = (
        "import asyncio, threading\n"
        "from selfimprove.engines.lazy import LazyEngine\n"
        "engine = LazyEngine(threading.Event().wait, None, 64)\n"
        "asyncio.run(asyncio.wait_for(engine.generate(None), 0.01))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stderr.strip().endswith("TimeoutError"), done.stderr
