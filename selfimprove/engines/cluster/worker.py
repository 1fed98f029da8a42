"""A worker process of a replicated engine: holds a complete engine and answers until its connection breaks."""

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
"""How a call ended in a worker: completions, an EngineError, a UserError, any other exception, or cancelled by us."""

ORPHAN_SECONDS = 1.0
"""Interval of checks that the parent is alive: another forked process may keep the connection open."""

LINES: weakref.WeakSet[Connection] = weakref.WeakSet()
"""This process's ends of all connections. A forked worker closes its copies; otherwise no connection would break."""


@dataclass(frozen=True)
class WorkerSpec:
    """How to start one worker.

    Attributes:
        make: creates the engine in the worker; must be picklable.
        environment: variables to set before anything heavy is imported.
        has_children: whether the engine starts processes, which Python forbids to daemon processes.
        cpus: number of threads that it computes with.
    """

    make: Callable[[], Engine]
    environment: Mapping[str, str] = field(default_factory=dict)
    has_children: bool = False
    cpus: int = 1


def start_worker(method: str, spec: WorkerSpec) -> tuple[BaseProcess, Connection]:
    """Start a process ("fork" or "spawn"); returns it with the connection to it.

    It first sends ("ready", ""), ("refused", sentence) or ("failed", traceback). Then it answers every (number,
    request) with (number, outcome, value, stats). (number, None) cancels a call; None empties the prefix cache.
    """
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    LINES.add(ours)
    process = context.Process(target=_work, args=(theirs, os.getpid(), spec), daemon=not spec.has_children)
    process.start()
    theirs.close()
    return process, ours


@atexit.register
def _break_lines() -> None:
    """At exit Python waits for non-daemon processes, which end when their connections break."""
    for line in LINES:
        line.close()


def _work(line: Connection, parent: int, spec: WorkerSpec) -> None:
    """The worker's main function: load the engine, report that, answer until the connection breaks."""
    try:
        os.environ.update(spec.environment)
        gc.freeze()  # excludes imported objects from garbage collection
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage, which then ends its workers
        for other in LINES:
            other.close()
        threading.Thread(target=_watch, args=(line, parent), daemon=True).start()
        try:
            engine = spec.make()
        except UserError as error:
            line.send(("refused", str(error)))
        except Exception:
            line.send(("failed", traceback.format_exc()))
        else:
            line.send(("ready", ""))
            asyncio.run(_answer_all(line, engine))
    finally:
        os._exit(1)  # without running the exit handlers inherited by a fork


class WorkerAnswers:
    """Runs requests on an engine and calls ``tell`` with (number, outcome, value) of each as it ends."""

    def __init__(self, engine: Engine, tell: Callable[[int, Outcome, Any], None]) -> None:
        self._engine, self._tell = engine, tell
        self._tasks: dict[int, asyncio.Task[tuple[Outcome, Any]]] = {}

    def start(self, number: int, request: Request) -> None:
        """Start answering a request."""
        task = self._tasks[number] = asyncio.get_running_loop().create_task(self._outcome(request))
        task.add_done_callback(lambda ended: self._ended(number, ended))

    def cancel(self, number: int) -> None:
        """Cancel a request that nobody waits for any more, unless it has already ended."""
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
    # A separate thread sends: while the connection is full of answers, this thread must keep reading. The stage may be
    # blocked on sending its next request, and reads no answer until then.
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
    """End the process when the parent dies, whatever is being loaded or computed.

    The poll ignores messages: a thread that woke for each would take the interpreter lock from the engine's steps.
    """
    broken = select.poll()
    broken.register(line.fileno(), 0)
    while not broken.poll(ORPHAN_SECONDS * 1000) and os.getppid() == parent:
        pass
    os._exit(0)
