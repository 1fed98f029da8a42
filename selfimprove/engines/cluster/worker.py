"""A worker process of a replicated engine: it holds a whole engine and answers until its connection breaks."""

import asyncio
import atexit
import gc
import multiprocessing
import os
import select
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

from selfimprove.core.errors import UserError
from selfimprove.engines.base import Engine, EngineError, Request

Outcome = Literal["done", "blocked", "refused", "failed", "cancelled"]
"""How a call ended in a worker: completions, an EngineError, a UserError, any other exception, or our own cancel."""

ORPHAN_SECONDS = 1.0
"""Seconds between checks for the parent: another forked process may hold the connection open."""

LINES: weakref.WeakSet[Connection] = weakref.WeakSet()
"""Our ends of all connections. A forked worker has copies and closes them; else no connection would ever break."""


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker is.

    Attributes:
        make: makes its engine there; must be picklable.
        environment: variables that it sets before anything heavy is imported.
        has_children: whether the engine starts processes of its own, which Python forbids to daemons.
        cpus: threads that it computes with.
    """

    make: Callable[[], Engine]
    environment: Mapping[str, str] = field(default_factory=dict)
    has_children: bool = False
    cpus: int = 1


def start_worker(method: str, plan: WorkerSpec) -> tuple[BaseProcess, Connection]:
    """Start a process ("fork" or "spawn") and return it with the connection to it.

    It first sends ("ready", ""), ("refused", sentence) or ("failed", traceback); then, for every (number, request) that
    it gets, (number, outcome, value, stats). (number, None) cancels a call, None empties the prefix cache.
    """
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    LINES.add(ours)
    process = context.Process(target=_work, args=(theirs, os.getpid(), plan), daemon=not plan.has_children)
    process.start()
    theirs.close()
    return process, ours


@atexit.register
def _break_lines() -> None:
    """Python waits at its end for processes that are no daemons; they end when their connections break."""
    for line in LINES:
        line.close()


def _work(line: Connection, parent: int, plan: WorkerSpec) -> None:
    """The worker process: load the engine, report that, answer until the connection breaks."""
    try:
        os.environ.update(plan.environment)
        gc.freeze()  # collections need not look through what was imported
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the stage, which ends us
        for other in LINES:
            other.close()
        threading.Thread(target=_watch, args=(line, parent), daemon=True).start()
        try:
            engine = plan.make()
        except UserError as error:
            line.send(("refused", str(error)))
        except Exception:
            line.send(("failed", traceback.format_exc()))
        else:
            line.send(("ready", ""))
            asyncio.run(_answer_all(line, engine))
    finally:
        os._exit(1)  # without the exit handlers that a fork has inherited


class WorkerAnswers:
    """Runs requests on an engine; ``tell`` gets (number, outcome, value) of each, in the order in which they end."""

    def __init__(self, engine: Engine, tell: Callable[[int, Outcome, Any], None]) -> None:
        self._engine, self._tell = engine, tell
        self._tasks: dict[int, asyncio.Task[tuple[Outcome, Any]]] = {}

    def start(self, number: int, request: Request) -> None:
        """Answer a request."""
        task = self._tasks[number] = asyncio.get_running_loop().create_task(self._outcome(request))
        task.add_done_callback(lambda ended: self._ended(number, ended))

    def cancel(self, number: int) -> None:
        """Nobody waits for it any more; if it has not ended yet, it ends as cancelled."""
        if number in self._tasks:
            self._tasks[number].cancel()

    async def _outcome(self, request: Request) -> tuple[Outcome, Any]:
        try:
            return "done", await self._engine.generate(request)
        except EngineError as error:
            return "blocked", str(error)
        except UserError as error:
            return "refused", str(error)
        except Exception:
            return "failed", traceback.format_exc()

    def _ended(self, number: int, task: asyncio.Task[tuple[Outcome, Any]]) -> None:
        del self._tasks[number]
        self._tell(number, *(("cancelled", None) if task.cancelled() else task.result()))


async def _answer_all(line: Connection, engine: Any) -> None:
    # A thread sends: while the connection is full of answers, this one must go on reading, since the stage may be
    # waiting for room for its next request, and reads no answer until it has it.
    sender = ThreadPoolExecutor(max_workers=1)

    def tell(number: int, outcome: Outcome, value: Any) -> None:
        sender.submit(line.send_bytes, ForkingPickler.dumps((number, outcome, value, engine.stats)))

    answers = WorkerAnswers(engine, tell)

    def take() -> None:
        try:
            while line.poll():
                message = line.recv()
                if message is None:
                    engine.forget_prefixes()
                elif message[1] is not None:
                    answers.start(*message)
                else:
                    answers.cancel(message[0])
        except (EOFError, OSError):
            os._exit(0)

    asyncio.get_running_loop().add_reader(line.fileno(), take)
    await asyncio.Event().wait()


def _watch(line: Connection, parent: int) -> None:
    """End the process with the parent, whatever is being loaded or computed.

    A thread that sleeps through messages: one that woke for each would take the interpreter's lock from the steps.
    """
    broken = select.poll()
    broken.register(line.fileno(), 0)
    while not broken.poll(ORPHAN_SECONDS * 1000) and os.getppid() == parent:
        pass
    os._exit(0)
