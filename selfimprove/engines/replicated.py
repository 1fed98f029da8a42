"""The default engine in several processes: two with a thread each decode more than one with two threads.

A small model's step is many short operations, which threads cannot share well; whole engines side by side can. Each
worker process holds the model, its share of the slots and its share of the threads, and does what
``engines.transformers`` does. This side has the queue: a request goes to the worker that has its task's prefixes, or
to one with free slots while that one has none.

Promise: as the default engine's, with "slots" and "threads" read as a worker's. Which worker answers changes no bit,
so an engine with r replicas, r x s slots and r x t threads gives the very completions of one with s slots and t
threads. (Another s or t may change the last bits of log-probabilities, as it may there.)

The workers are forked before torch has started threads here, so that torch is imported once, if it was not already;
where it has threads, the workers are fresh interpreters. A worker ends when its line to this process breaks, so none
outlives it, however it ends.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from selfimprove.chat import ChatFormat
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.errors import UserError
from selfimprove.records import Message
from selfimprove.seeds import key_bits

Outcome = Literal["done", "blocked", "refused", "failed", "cancelled"]
"""How a call ended in a worker: completions, an EngineError, a UserError, any other exception, or our own cancel."""

ORPHAN_SECONDS = 1.0
"""A line may be held open by a process that somebody else forked; so a worker also looks this often for its parent."""

LINES: weakref.WeakSet[Connection] = weakref.WeakSet()
"""Our ends of all lines. A forked worker has copies; it closes them, or no line would ever be seen to break."""


@dataclass(eq=False)
class _Call:
    """One ``generate`` of this side; ``home`` is the worker that answers its task by preference."""

    number: int
    request: Request
    future: asyncio.Future[list[Completion]]
    home: int


@dataclass(eq=False)
class _Worker:
    """A process, what waits for it here, and how many samples it has been asked for and not answered."""

    process: BaseProcess
    line: Connection
    queue: deque[_Call] = field(default_factory=deque)
    load: int = 0
    stats: EngineStats = field(default_factory=EngineStats)


class ReplicatedEngine:
    """Implements ``engines.base.Engine`` over ``cfg.replicas`` processes on a CPU."""

    def __init__(
        self, cfg: TransformersEngineConfig, model_dir: Path, *, threads: int, start: str | None = None
    ) -> None:
        """Start the workers and wait until each has loaded the model.

        Args:
            threads: of all workers together; each has at least one.
            start: "fork" or "spawn"; None chooses.

        Raises:
            UserError: as ``TransformersEngine``.
        """
        self.chat = ChatFormat.load(model_dir, cfg.chat_template)
        slots = cfg.slots // cfg.replicas
        self._share = cfg.model_copy(
            update={"replicas": 1, "slots": slots, "prefill_rows": min(cfg.prefill_rows, slots)}
        )
        self._calls: dict[int, _Call] = {}
        self._asked: dict[int, tuple[_Worker, int]] = {}
        self._made = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._seconds, self._since = 0.0, 0.0
        self._workers: list[_Worker] = []
        try:
            for _ in range(cfg.replicas):
                arguments = (self._share, model_dir, max(1, threads // cfg.replicas))
                self._workers.append(_started(start or _start_method(), arguments))
            for worker in self._workers:
                self._await_ready(worker)
        except BaseException:
            self._end()
            raise

    @property
    def stats(self) -> EngineStats:
        """The workers' counts together, as of each one's last answer; ``seconds`` in which any call waited here."""
        total = EngineStats(seconds=self._seconds + (time.perf_counter() - self._since if self._calls else 0.0))
        for worker in self._workers:
            for one in fields(EngineStats):
                if one.name not in ("seconds", "notes"):
                    setattr(total, one.name, getattr(total, one.name) + getattr(worker.stats, one.name))
            for name, value in worker.stats.notes.items():
                total.notes[name] = total.notes.get(name, 0.0) + value
        return total

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the prompt of these messages has."""
        return len(self.chat.encode(messages, add_generation_prompt=True).ids)

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether the prompt and ``max_tokens`` more fit a slot; methods drop their oldest turns until they do."""
        return self.prompt_tokens(messages) + max_tokens <= self._share.context

    async def generate(self, request: Request) -> list[Completion]:
        """See ``engines.base.Engine.generate``.

        Raises:
            EngineError: as ``TransformersEngine.generate``.
            UserError: a worker has died, or refused to work; every call ends with this.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        home = key_bits(request.seed.task) % len(self._workers)
        call = _Call(self._made, request, loop.create_future(), home)
        self._made += 1
        if not self._calls:
            self._listen(loop)
        self._calls[call.number] = call
        self._workers[home].queue.append(call)
        self._feed()
        try:
            return await call.future
        finally:
            self._drop(call)

    def forget_prefixes(self) -> None:
        """Empty the workers' prefix caches; results do not change, the next prompts are read anew."""
        for worker in self._workers:
            worker.line.send(None)

    async def close(self) -> None:
        """End the workers; calls that still wait are cancelled."""
        for call in list(self._calls.values()):
            call.future.cancel()
            self._drop(call)
        self._error = self._error or RuntimeError("the engine has been closed")
        self._end()

    def _await_ready(self, worker: _Worker) -> None:
        try:
            outcome, text = worker.line.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if outcome == "refused":
            raise UserError(text)
        if outcome == "failed":
            raise RuntimeError(f"a worker of the engine could not start:\n{text}")

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first waiting call's loop reads the lines, until no call waits."""
        self._loop, self._since = loop, time.perf_counter()
        for worker in self._workers:
            loop.add_reader(worker.line.fileno(), self._receive, worker)

    def _feed(self) -> None:
        """Send what waits here: to its home while that has free slots, else to another's, else some ahead."""
        slots, ahead = self._share.slots, self._share.prefill_rows
        for worker in self._workers:
            while worker.queue and worker.load < slots:
                self._send(worker, worker.queue.popleft())
        for worker in self._workers:
            longest = max(self._workers, key=lambda other: len(other.queue))
            while longest.queue and worker.load < slots:
                self._send(worker, longest.queue.popleft())
        for worker in self._workers:
            # So that a slot that gets free need not wait for this side, and reading passes are filled.
            while worker.queue and worker.load < slots + ahead:
                self._send(worker, worker.queue.popleft())

    def _send(self, worker: _Worker, call: _Call) -> None:
        worker.load += call.request.n
        self._asked[call.number] = worker, call.request.n
        try:
            worker.line.send((call.number, call.request))
        except OSError:
            self._fail(self._death(worker))

    def _drop(self, call: _Call) -> None:
        """Forget a call that has ended or whose caller has gone."""
        if self._calls.pop(call.number, None) is None:
            return
        if call.number in self._asked:
            if self._error is None:
                with suppress(OSError):  # a dead worker is noticed where its answers are read
                    self._asked[call.number][0].line.send((call.number, None))
        elif call in self._workers[call.home].queue:
            self._workers[call.home].queue.remove(call)
        if not self._calls:
            assert self._loop is not None
            self._seconds += time.perf_counter() - self._since
            for worker in self._workers:
                self._loop.remove_reader(worker.line.fileno())

    def _receive(self, worker: _Worker) -> None:
        """A line has an answer, or has broken."""
        try:
            number, outcome, value, worker.stats = worker.line.recv()
        except (EOFError, OSError):
            self._fail(self._death(worker))
            return
        worker.load -= self._asked.pop(number)[1]
        call = self._calls.get(number)
        if outcome == "refused":
            self._fail(UserError(value))
        elif outcome == "failed":
            self._fail(RuntimeError(f"a worker of the engine failed:\n{value}"))
        elif call is not None and not call.future.done():
            if outcome == "done":
                call.future.set_result(value)
            else:
                call.future.set_exception(EngineError(value))
        self._feed()

    def _fail(self, error: Exception) -> None:
        """The engine cannot go on: every call ends, those to come too."""
        self._error = self._error or error
        for worker in self._workers:
            worker.queue.clear()
            if self._loop is not None:
                self._loop.remove_reader(worker.line.fileno())
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(self._error)

    def _death(self, worker: _Worker) -> UserError:
        worker.process.join(timeout=ORPHAN_SECONDS)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        place = self._workers.index(worker) + 1
        return UserError(
            f"engine transformers: worker process {place} of {len(self._workers)} {how}; if memory ran out, lower "
            "slots or replicas, and run again: what was done is kept."
        )

    def _end(self) -> None:
        for worker in self._workers:
            worker.line.close()
        for worker in self._workers:
            worker.process.join(timeout=ORPHAN_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _start_method() -> str:
    """Fork while torch has no threads here: a fork would copy its pool's state, but not the pool's threads."""
    if not hasattr(os, "fork"):
        return "spawn"
    if "torch" not in sys.modules:
        # What the workers need, imported once for all. (A thread that numpy starts meanwhile survives forks.)
        from transformers import AutoModelForCausalLM  # noqa: F401

        import selfimprove.engines.transformers  # noqa: F401

        return "fork"
    tasks = Path("/proc/self/task")
    others = len(list(tasks.iterdir())) - threading.active_count() if tasks.is_dir() else 1
    return "spawn" if others else "fork"


def _started(method: str, arguments: tuple[TransformersEngineConfig, Path, int]) -> _Worker:
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    LINES.add(ours)
    process = context.Process(target=_work, args=(theirs, os.getpid(), *arguments), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _work(line: Connection, parent: int, cfg: TransformersEngineConfig, model_dir: Path, threads: int) -> None:
    """A worker's life, in its own process: load, say so, answer until the line breaks."""
    try:
        gc.freeze()  # collections need not look through what was imported
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the stage, which ends us
        for other in LINES:
            other.close()
        from selfimprove.engines.transformers import TransformersEngine

        try:
            engine = TransformersEngine(cfg, model_dir, threads=threads)
        except UserError as error:
            line.send(("refused", str(error)))
        except Exception:
            line.send(("failed", traceback.format_exc()))
        else:
            line.send(("ready", ""))
            asyncio.run(_answer_all(line, parent, engine))
    finally:
        os._exit(1)  # without the exit handlers that a fork has inherited


async def _answer_all(line: Connection, parent: int, engine: Any) -> None:
    loop = asyncio.get_running_loop()
    tasks: dict[int, asyncio.Task[None]] = {}

    async def answer(number: int, request: Request) -> None:
        outcome: Outcome = "cancelled"
        value: Any = None
        try:
            outcome, value = "done", await engine.generate(request)
        except asyncio.CancelledError:
            outcome = "cancelled"
        except EngineError as error:
            outcome, value = "blocked", str(error)
        except UserError as error:
            outcome, value = "refused", str(error)
        except Exception:
            outcome, value = "failed", traceback.format_exc()
        del tasks[number]
        line.send((number, outcome, value, engine.stats))

    def take() -> None:
        try:
            while line.poll():
                message = line.recv()
                if message is None:
                    engine.forget_prefixes()
                elif message[1] is not None:
                    tasks[message[0]] = loop.create_task(answer(message[0], message[1]))
                elif message[0] in tasks:
                    tasks[message[0]].cancel()
        except (EOFError, OSError):
            os._exit(0)

    def watch() -> None:
        # A thread, so that the end of the parent is noticed at once, whatever is being computed. It sleeps through
        # messages: a thread that woke for each would take the interpreter's lock from the steps.
        broken = select.poll()
        broken.register(line.fileno(), 0)
        while not broken.poll(ORPHAN_SECONDS * 1000) and os.getppid() == parent:
            pass
        os._exit(0)

    loop.add_reader(line.fileno(), take)
    threading.Thread(target=watch, daemon=True).start()
    await asyncio.Event().wait()
