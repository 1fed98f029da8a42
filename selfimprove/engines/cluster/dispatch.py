"""The queue in front of an engine's replicas: assigns requests to replicas.

A request goes to its task's home replica, which has the task's prefixes in its cache, or to an idle one if the home
replica has no free slot. Which replica answers changes no completion, so the queue may follow the load.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request, Templated


@dataclass(frozen=True)
class Share:
    """Capacity of one replica.

    Attributes:
        slots: samples decoded concurrently.
        ahead: samples sent beyond that, so that a freed slot need not wait for this process.
        context: maximum tokens of a prompt plus its completion.
    """

    slots: int
    ahead: int
    context: int


@dataclass(eq=False)
class Replica:
    """A replica's local queue, and the number of samples sent to it and not yet answered."""

    queue: deque[Call] = field(default_factory=deque)
    load: int = 0
    stats: EngineStats = field(default_factory=EngineStats)


R = TypeVar("R", bound=Replica)


@dataclass(eq=False)
class Call:
    """One ``generate`` call in this process; ``home`` is the preferred replica for its task."""

    number: int
    request: Request
    future: asyncio.Future[list[Completion]]
    home: Replica | None = None
    lost: int = 0
    """Number of replicas that died while processing it."""


class Dispatcher(Templated, Generic[R]):
    """Base of engines that pass requests on to replicas. Subclasses create the replicas and communicate with them."""

    def __init__(self, share: Share, chat: ChatFormat) -> None:
        self.chat, self.context = chat, share.context
        self._share = share
        self._workers: list[R] = []
        self._calls: dict[int, Call] = {}
        self._asked: dict[int, tuple[R, Call]] = {}
        self._homeless: deque[Call] = deque()
        self._made = self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._seconds, self._since = 0.0, 0.0

    # Implemented by subclasses

    def _post(self, worker: R, number: int, request: Request | None) -> None:
        """Send a request to a replica; None cancels the call of that number."""
        raise NotImplementedError

    def _listen(self) -> None:
        """Called when the first call starts to wait: start reading the replicas' answers."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Called when no call waits any more."""
        raise NotImplementedError

    # Public interface

    @property
    def stats(self) -> EngineStats:
        """Total of the replicas' counts, as of each one's last answer; ``seconds`` with at least one call waiting."""
        waited = time.perf_counter() - self._since if self._calls else 0.0
        counted = self._counted()
        names = [one.name for one in fields(EngineStats) if one.name != "seconds"]
        total = {name: sum(getattr(stats, name) for stats in counted) for name in names}
        return EngineStats(**total, seconds=self._seconds + waited)

    async def generate(self, request: Request) -> list[Completion]:
        """See ``engines.base.Engine.generate``.

        Raises:
            EngineError: as the replicas' engine.
            UserError: the engine cannot continue; every call ends with this.
        """
        if self._error is not None:
            raise self._error
        self._loop = asyncio.get_running_loop()
        call = Call(self._made, request, self._loop.create_future())
        self._made += 1
        if not self._calls:
            self._since = time.perf_counter()
            self._listen()
        self._calls[call.number] = call
        self._enqueue(call)
        try:
            return await call.future
        finally:
            self._drop(call)

    def _counted(self) -> list[EngineStats]:
        return [worker.stats for worker in self._workers]

    # The queue

    def _enqueue(self, call: Call, *, first: bool = False) -> None:
        """Queue a call at its home replica, at the end or in front; it is sent immediately if there is room."""
        if self._workers:
            call.home = self._workers[key_bits(call.request.seed.task) % len(self._workers)]
        else:  # no replica has loaded its model yet, or all are lost
            call.home = None
        queue = self._queue_of(call)
        if first:
            queue.appendleft(call)
        else:
            queue.append(call)
        self._waiting += 1
        if call.home is not None:
            self._feed(call.home)  # type: ignore[arg-type]

    def _queue_of(self, call: Call) -> deque[Call]:
        return self._homeless if call.home is None else call.home.queue

    def _feed(self, worker: R) -> None:
        """Send waiting calls after this replica, or its queue, has changed.

        A call goes to its home while that has free slots, else to a replica with free slots, else ahead to its home.
        """
        slots, ahead = self._share.slots, self._share.ahead
        self._send_own(worker, slots)
        while self._waiting and worker.load < slots:
            longest = max(self._workers, key=lambda other: len(other.queue))
            if not longest.queue:
                break
            self._send(worker, longest.queue.popleft())
        if worker.queue:
            for other in self._workers:
                while worker.queue and other.load < slots:
                    self._send(other, worker.queue.popleft())
        self._send_own(worker, slots + ahead)

    def _send_own(self, worker: R, most: int) -> None:
        while worker.queue and worker.load < most:
            self._send(worker, worker.queue.popleft())

    def _send(self, worker: R, call: Call) -> None:
        self._waiting -= 1
        worker.load += call.request.n
        self._asked[call.number] = worker, call
        self._post(worker, call.number, call.request)

    def _drop(self, call: Call) -> None:
        """Remove a call that has ended or whose caller has been cancelled."""
        if self._calls.pop(call.number, None) is None:
            return
        if call.number in self._asked:
            if self._error is None:
                self._post(self._asked[call.number][0], call.number, None)
        elif self._error is None and call in (queue := self._queue_of(call)):
            queue.remove(call)
            self._waiting -= 1
        if not self._calls:
            self._seconds += time.perf_counter() - self._since
            self._rest()

    def _answered(self, worker: R, number: int, outcome: str, value: Any) -> None:
        """Handle a replica's answer to a call, or its end (``worker.Outcome``)."""
        _, call = self._asked.pop(number)
        worker.load -= call.request.n
        if outcome == "refused":
            self._fail(UserError(value))
        elif outcome == "failed":
            self._fail(RuntimeError(f"a worker of the engine failed:\n{value}"))
        elif number in self._calls and not call.future.done():
            if outcome == "done":
                call.future.set_result(value)
            else:
                call.future.set_exception(EngineError(value))
        self._feed(worker)

    def _fail(self, error: Exception) -> None:
        """The engine cannot continue: all current and future calls raise this error."""
        self._error = self._error or error
        self._waiting = 0
        self._homeless.clear()
        for worker in self._workers:
            worker.queue.clear()
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(self._error)

    def _cancel_all(self) -> None:
        """The engine is closed: cancel waiting calls; later ones raise an error."""
        for call in list(self._calls.values()):
            call.future.cancel()
            self._drop(call)
        self._error = self._error or RuntimeError("the engine has been closed")
