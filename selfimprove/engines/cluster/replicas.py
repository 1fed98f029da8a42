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

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.cluster.dispatch import Dispatcher, Replica, Share
from selfimprove.engines.cluster.worker import ORPHAN_SECONDS, WorkerSpec, start_worker
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters


@dataclass(eq=False)
class _Worker(Replica):
    """A replica in a process of its own."""

    process: BaseProcess = field(kw_only=True)
    line: Connection = field(kw_only=True)


class ReplicatedEngine(Dispatcher[_Worker]):
    """Implements ``engines.base.Engine`` over processes that each hold an engine."""

    def __init__(
        self,
        plans: Sequence[WorkerSpec],
        share: Share,
        chat: ChatFormat,
        *,
        name: str,
        remedy: str,
        start: str = "spawn",
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
        super().__init__(share, chat)
        self._name, self._remedy = name, remedy
        try:
            for plan in plans:
                process, line = start_worker(start, plan)
                self._workers.append(_Worker(process=process, line=line))
            loading = list(self._workers)
            while loading:
                ready = wait([worker.line for worker in loading])
                for worker in [worker for worker in loading if worker.line in ready]:
                    self._await_ready(worker)
                    loading.remove(worker)
        except BaseException:
            self._end()
            raise

    def forget_prefixes(self) -> None:
        """Empty the workers' prefix caches; results do not change, the next prompts are prefilled anew."""
        for worker in self._workers:
            worker.line.send(None)

    async def close(self) -> None:
        """End the workers; calls that still wait are cancelled."""
        self._cancel_all()
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

    def _listen(self) -> None:
        """The first waiting call's loop reads the connections, until no call waits."""
        assert self._loop is not None
        for worker in self._workers:
            self._loop.add_reader(worker.line.fileno(), self._receive, worker)

    def _rest(self) -> None:
        assert self._loop is not None
        for worker in self._workers:
            self._loop.remove_reader(worker.line.fileno())

    def _post(self, worker: _Worker, number: int, request: Request | None) -> None:
        try:
            worker.line.send((number, request))
        except OSError:
            if request is not None:  # of a cancelled call a dead worker is noticed where its answers are read
                self._fail(self._death(worker))

    def _receive(self, worker: _Worker) -> None:
        """A connection has an answer, or has broken."""
        try:
            number, outcome, value, worker.stats = worker.line.recv()
        except (EOFError, OSError):
            self._fail(self._death(worker))
            return
        self._answered(worker, number, outcome, value)

    def _fail(self, error: Exception) -> None:
        if self._loop is not None:
            for worker in self._workers:
                self._loop.remove_reader(worker.line.fileno())
        super()._fail(error)

    def _death(self, worker: _Worker) -> UserError:
        worker.process.join(timeout=ORPHAN_SECONDS)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        place = self._workers.index(worker) + 1
        return UserError(
            f"engine {self._name}: worker process {place} of {len(self._workers)} {how}; if memory ran out, lower "
            f"{self._remedy}, and run again: finished work is kept."
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
    plan, share = transformers_replica(cfg, model_dir, threads=threads)
    return ReplicatedEngine(
        [plan] * cfg.replicas,
        share,
        ChatFormat.load(model_dir, cfg.chat_template),
        name="transformers",
        remedy="slots or replicas",
        start=start or _start_method(),
    )


def transformers_replica(cfg: TransformersEngineConfig, model_dir: Path, *, threads: int) -> tuple[WorkerSpec, Share]:
    """One replica of ``cfg.replicas``: its share of the slots and of the threads, of which it has at least one."""
    slots, rows = batch_sizes(cfg, stored_parameters(model_dir))
    slots //= cfg.replicas
    rows = min(rows, slots)
    own = cfg.model_copy(update={"replicas": 1, "slots": slots, "prefill_rows": rows})
    threads = max(1, threads // cfg.replicas)
    # So many ahead also fill the prefill passes.
    return WorkerSpec(partial(_transformers, own, model_dir, threads), cpus=threads), Share(slots, rows, cfg.context)


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
        vllm_share(cfg),
        ChatFormat.load(model_dir, cfg.chat_template),
        name="vllm",
        remedy="max_sequences, gpu_memory or replicas",
    )


def vllm_share(cfg: VllmEngineConfig) -> Share:
    """What one vLLM engine takes at once."""
    return Share(cfg.max_sequences, ahead=max(1, cfg.max_sequences // 4), context=cfg.context)


def vllm_replica(cfg: VllmEngineConfig, model_dir: Path, *, cpus: int = 1) -> WorkerSpec:
    """One vLLM engine, on whichever GPUs or CPU threads its process is given."""
    return WorkerSpec(partial(_vllm, cfg, model_dir), cpus=cpus)


def vllm_plans(
    cfg: VllmEngineConfig, model_dir: Path, *, replicas: int, gpus: Sequence[str], threads: int
) -> list[WorkerSpec]:
    """What each process of ``replicated_vllm`` is: its GPUs in the order of ``gpus``, and its share of the threads."""
    width, own_threads = cfg.tensor_parallel, str(max(1, threads // replicas))
    plans = []
    for index in range(replicas):
        environment = {"OMP_NUM_THREADS": own_threads, "MKL_NUM_THREADS": own_threads}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index * width : (index + 1) * width])
        plans.append(WorkerSpec(partial(_vllm, cfg, model_dir), environment, has_children=width > 1))
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
