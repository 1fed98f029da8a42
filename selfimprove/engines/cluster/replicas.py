"""An engine in several processes, with one queue: the default engine on CPUs, vLLM on GPUs.

Each worker process holds a whole engine. This side has the queue: a request goes to the worker that has its task's
prefixes, or to one with room while that one has none. A worker ends when its connection to this process breaks,
so none outlives it, however it ends.

*transformers*: a small model's step is many short operations, which threads cannot share well; whole engines side by
side can. Each worker has its share of the slots and of the threads. Promise: as the default engine's, with "slots" and
"threads" read as a worker's. Which worker answers changes no bit, so an engine with r replicas, r x s slots and r x t
threads gives the very completions of one with s slots and t threads. (Another s or t may change the last bits of
log-probabilities, as it may there.) The workers are forked before torch has started threads here, so that torch is
imported once, if it was not already; where it has threads, the workers are fresh interpreters.

*vllm*: each worker has GPUs of its own, or its share of a CPU's threads. The workers are fresh interpreters (CUDA does
not survive a fork), and load side by side. Promise: as one vLLM engine's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits
from selfimprove.engines.base import Completion, Engine, EngineError, EngineStats, Request, Templated
from selfimprove.engines.cluster.worker import ORPHAN_SECONDS, Plan, start_worker
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters


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


@dataclass(frozen=True)
class Share:
    """What one worker takes at once.

    Attributes:
        slots: samples that it decodes at once.
        ahead: samples sent beyond that, so that a slot that gets free need not wait for this side.
        context: tokens of a prompt and its completion.
    """

    slots: int
    ahead: int
    context: int


class ReplicatedEngine(Templated):
    """Implements ``engines.base.Engine`` over processes that each hold an engine."""

    def __init__(
        self, plans: Sequence[Plan], share: Share, chat: ChatFormat, *, name: str, remedy: str, start: str = "spawn"
    ) -> None:
        """Start the workers and wait until each has loaded the model.

        Args:
            plans: one a worker.
            share: of each worker.
            name: the engine's, and ``remedy`` the params to lower where memory ran out: both for messages.
            start: "fork" or "spawn".

        Raises:
            UserError: as the engine that the plans make.
        """
        self.chat, self.context = chat, share.context
        self._share, self._name, self._remedy = share, name, remedy
        self._calls: dict[int, _Call] = {}
        self._asked: dict[int, tuple[_Worker, int]] = {}
        self._made = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._seconds, self._since = 0.0, 0.0
        self._workers: list[_Worker] = []
        try:
            for plan in plans:
                self._workers.append(_Worker(*start_worker(start, plan)))
            loading = list(self._workers)
            while loading:
                ready = wait([worker.line for worker in loading])
                for worker in [worker for worker in loading if worker.line in ready]:
                    self._await_ready(worker)
                    loading.remove(worker)
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

    async def generate(self, request: Request) -> list[Completion]:
        """See ``engines.base.Engine.generate``.

        Raises:
            EngineError: as the workers' engine.
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
        """Empty the workers' prefix caches; results do not change, the next prompts are prefilled anew."""
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
        """The first waiting call's loop reads the connections, until no call waits."""
        self._loop, self._since = loop, time.perf_counter()
        for worker in self._workers:
            loop.add_reader(worker.line.fileno(), self._receive, worker)

    def _feed(self) -> None:
        """Send waiting calls: to their home worker while it has free slots, else to another, else some ahead."""
        slots, ahead = self._share.slots, self._share.ahead
        for worker in self._workers:
            while worker.queue and worker.load < slots:
                self._send(worker, worker.queue.popleft())
        for worker in self._workers:
            longest = max(self._workers, key=lambda other: len(other.queue))
            while longest.queue and worker.load < slots:
                self._send(worker, longest.queue.popleft())
        for worker in self._workers:
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
        """Forget a call that has ended or whose caller has been cancelled."""
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
        """A connection has an answer, or has broken."""
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
            f"engine {self._name}: worker process {place} of {len(self._workers)} {how}; if memory ran out, lower "
            f"{self._remedy}, and run again: what was done is kept."
        )

    def _end(self) -> None:
        for worker in self._workers:
            worker.line.close()
        for worker in self._workers:
            worker.process.join(timeout=ORPHAN_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def replicated_transformers(
    cfg: TransformersEngineConfig, model_dir: Path, *, threads: int, start: str | None = None
) -> ReplicatedEngine:
    """The default engine in ``cfg.replicas`` processes on a CPU, which share its slots.

    Args:
        threads: of all workers together; each has at least one.
        start: "fork" or "spawn"; None chooses.

    Raises:
        UserError: as ``TransformersEngine``.
    """
    slots, rows = batch_sizes(cfg, stored_parameters(model_dir))
    slots //= cfg.replicas
    rows = min(rows, slots)
    share = cfg.model_copy(update={"replicas": 1, "slots": slots, "prefill_rows": rows})
    plan = Plan(partial(_transformers, share, model_dir, max(1, threads // cfg.replicas)))
    return ReplicatedEngine(
        [plan] * cfg.replicas,
        Share(slots, ahead=rows, context=cfg.context),  # so many ahead also fill the prefill passes
        ChatFormat.load(model_dir, cfg.chat_template),
        name="transformers",
        remedy="slots or replicas",
        start=start or _start_method(),
    )


def replicated_vllm(
    cfg: VllmEngineConfig, model_dir: Path, *, replicas: int, gpus: Sequence[str], threads: int
) -> ReplicatedEngine:
    """vLLM in ``replicas`` processes, each with ``cfg.tensor_parallel`` of ``gpus``, or with its share of a CPU.

    Args:
        gpus: as ``vllm.checks.visible_gpus`` names them; none: on the CPU.
        threads: CPU threads of all workers together; each has at least one.

    Raises:
        UserError: as ``VllmEngine``.
    """
    return ReplicatedEngine(
        vllm_plans(cfg, model_dir, replicas=replicas, gpus=gpus, threads=threads),
        Share(cfg.max_sequences, ahead=max(1, cfg.max_sequences // 4), context=cfg.context),
        ChatFormat.load(model_dir, cfg.chat_template),
        name="vllm",
        remedy="max_sequences, gpu_memory or replicas",
    )


def vllm_plans(
    cfg: VllmEngineConfig, model_dir: Path, *, replicas: int, gpus: Sequence[str], threads: int
) -> list[Plan]:
    """What each process of ``replicated_vllm`` is: its GPUs in the order of ``gpus``, and its share of the threads."""
    width, own_threads = cfg.tensor_parallel, str(max(1, threads // replicas))
    plans = []
    for index in range(replicas):
        environment = {"OMP_NUM_THREADS": own_threads, "MKL_NUM_THREADS": own_threads}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index * width : (index + 1) * width])
        plans.append(Plan(partial(_vllm, cfg, model_dir), environment, has_children=width > 1))
    return plans


def _transformers(cfg: TransformersEngineConfig, model_dir: Path, threads: int) -> Engine:
    from selfimprove.engines.cpu.engine import TransformersEngine

    return TransformersEngine(cfg, model_dir, threads=threads)


def _vllm(cfg: VllmEngineConfig, model_dir: Path) -> Engine:
    from selfimprove.engines.vllm.engine import VllmEngine

    return VllmEngine(cfg, model_dir)


def _start_method() -> str:
    """Fork while torch has no threads here: a fork would copy its pool's state, but not the pool's threads."""
    if not hasattr(os, "fork"):
        return "spawn"
    if "torch" not in sys.modules:
        # What the workers need, imported once for all. (A thread that numpy starts meanwhile survives forks.)
        from transformers import AutoModelForCausalLM  # noqa: F401

        import selfimprove.engines.cpu.engine  # noqa: F401

        return "fork"
    tasks = Path("/proc/self/task")
    others = len(list(tasks.iterdir())) - threading.active_count() if tasks.is_dir() else 1
    return "spawn" if others else "fork"
