"""An engine in several processes on one machine, with one queue: the default engine on CPUs, vLLM on GPUs.

Each worker process holds a complete engine. The queue is in this process: a request goes to the worker that has its
task's prefixes, or to an idle one if that worker has no free slot. A worker ends when its connection to this process
breaks, so none outlives it, however it ends.

*transformers*: a small model's step consists of many short operations, which threads cannot share well but independent
engines can. Each worker has its share of the slots and threads. Guarantee: that of the default engine, for one worker's
slots and threads. Which worker answers changes no bit, so r replicas with r x s slots and r x t threads give exactly
the completions of one engine with s slots and t threads. (A different s or t may change the low-order bits of
log-probabilities, as it may there.) Workers are forked if torch has not started threads here, so that torch is
imported only once; otherwise, and on macOS (``core.forking``), they are new interpreters.

*vllm*: each worker has its own GPUs, or its share of the CPU threads. Workers are new interpreters (CUDA does not
survive a fork) and load in parallel. Guarantee: that of a single vLLM engine.
"""

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
from selfimprove.core.forking import START
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.cluster.dispatch import Dispatcher, Replica, Share
from selfimprove.engines.cluster.worker import ORPHAN_SECONDS, WorkerSpec, start_worker
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters


@dataclass(eq=False)
class _Worker(Replica):
    """A replica in its own process."""

    process: BaseProcess = field(kw_only=True)
    line: Connection = field(kw_only=True)


class ReplicatedEngine(Dispatcher[_Worker]):
    """Implements ``engines.base.Engine`` over processes that each hold an engine."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        share: Share,
        chat: ChatFormat,
        *,
        name: str,
        remedy: str,
        start: str = "spawn",
    ) -> None:
        """Start the workers and wait until each has loaded the model.

        Args:
            specs: one per worker.
            share: of each worker.
            name: the engine's name; ``remedy``: the params to lower if memory runs out. Both are for messages.
            start: "fork" or "spawn".

        Raises:
            UserError: as the engines that the specs create.
        """
        super().__init__(share, chat)
        self._name, self._remedy = name, remedy
        try:
            for spec in specs:
                process, line = start_worker(start, spec)
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
        """Empty the workers' prefix caches. Results do not change; the next prompts are prefilled from scratch."""
        for worker in self._workers:
            worker.line.send(None)

    async def close(self) -> None:
        """End the workers; waiting calls are cancelled."""
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
        """Have the event loop read the connections while calls are waiting."""
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
            if request is not None:  # for a cancellation, a dead worker is detected in _receive
                self._fail(self._death(worker))

    def _receive(self, worker: _Worker) -> None:
        """Handle a connection that has an answer or has broken."""
        try:
            number, outcome, value, worker.stats = worker.line.recv()
        except (EOFError, OSError):
            self._fail(self._death(worker))
            return
        self._answered(worker, number, outcome, value)

    def _fail(self, error: Exception) -> None:
        if self._loop is not None:
            self._rest()
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
    """The default engine in ``cfg.replicas`` processes on a CPU, which divide its slots.

    Args:
        threads: total of all workers; each has at least one.
        start: "fork" or "spawn"; None: chosen automatically.

    Raises:
        UserError: as ``TransformersEngine``.
    """
    spec, share = transformers_replica(cfg, model_dir, threads=threads)
    return ReplicatedEngine(
        [spec] * cfg.replicas,
        share,
        ChatFormat.load(model_dir, cfg.chat_template),
        name="transformers",
        remedy="slots or replicas",
        start=start or _start_method(),
    )


def transformers_replica(cfg: TransformersEngineConfig, model_dir: Path, *, threads: int) -> tuple[WorkerSpec, Share]:
    """One of ``cfg.replicas`` replicas: its share of the slots, and of the threads (at least one)."""
    slots, rows = batch_sizes(cfg, stored_parameters(model_dir))
    slots //= cfg.replicas
    rows = min(rows, slots)
    own = cfg.model_copy(update={"replicas": 1, "slots": slots, "prefill_rows": rows})
    threads = max(1, threads // cfg.replicas)
    # This many requests ahead also fill the prefill passes.
    return WorkerSpec(partial(_transformers, own, model_dir, threads), cpus=threads), Share(slots, rows, cfg.context)


def replicated_vllm(
    cfg: VllmEngineConfig, model_dir: Path, *, replicas: int, gpus: Sequence[str], threads: int
) -> ReplicatedEngine:
    """vLLM in ``replicas`` processes, each with ``cfg.tensor_parallel`` of ``gpus`` or its share of the CPU threads.

    Args:
        gpus: as named by ``vllm.checks.visible_gpus``; empty: run on the CPU.
        threads: total CPU threads of all workers; each has at least one.

    Raises:
        UserError: as ``VllmEngine``.
    """
    return ReplicatedEngine(
        vllm_specs(cfg, model_dir, replicas=replicas, gpus=gpus, threads=threads),
        vllm_share(cfg),
        ChatFormat.load(model_dir, cfg.chat_template),
        name="vllm",
        remedy="max_sequences, gpu_memory or replicas",
    )


def vllm_share(cfg: VllmEngineConfig) -> Share:
    """The capacity of one vLLM engine."""
    return Share(cfg.max_sequences, ahead=max(1, cfg.max_sequences // 4), context=cfg.context)


def vllm_replica(cfg: VllmEngineConfig, model_dir: Path, *, cpus: int = 1) -> WorkerSpec:
    """One vLLM engine, on whichever GPUs or CPU threads its process gets."""
    return WorkerSpec(partial(_vllm, cfg, model_dir), cpus=cpus)


def vllm_specs(
    cfg: VllmEngineConfig, model_dir: Path, *, replicas: int, gpus: Sequence[str], threads: int
) -> list[WorkerSpec]:
    """The spec of each process of ``replicated_vllm``: GPUs assigned in the order of ``gpus``, threads divided."""
    width, own_threads = cfg.tensor_parallel, str(max(1, threads // replicas))
    specs = []
    for index in range(replicas):
        environment = {"OMP_NUM_THREADS": own_threads, "MKL_NUM_THREADS": own_threads}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index * width : (index + 1) * width])
        specs.append(WorkerSpec(partial(_vllm, cfg, model_dir), environment, has_children=width > 1))
    return specs


def _transformers(cfg: TransformersEngineConfig, model_dir: Path, threads: int) -> Engine:
    from selfimprove.engines.cpu.engine import TransformersEngine

    return TransformersEngine(cfg, model_dir, threads=threads)


def _vllm(cfg: VllmEngineConfig, model_dir: Path) -> Engine:
    from selfimprove.engines.vllm.engine import VllmEngine

    return VllmEngine(cfg, model_dir)


def _start_method() -> str:
    """Fork only while torch has no threads here: a fork would copy its thread pool's state without the threads."""
    if START == "spawn":
        return START
    if "torch" not in sys.modules:
        # Import what the workers need once for all of them. (A thread that numpy starts here survives forks.)
        from transformers import AutoModelForCausalLM  # noqa: F401

        import selfimprove.engines.cpu.engine  # noqa: F401

        return "fork"
    tasks = Path("/proc/self/task")
    others = len(list(tasks.iterdir())) - threading.active_count() if tasks.is_dir() else 1
    return "spawn" if others else "fork"
