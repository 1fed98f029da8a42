"""The thread that owns a vLLM engine: it takes requests from a queue, adds them to the running batch, and answers.

vLLM's asynchronous front end needs a second process, so we drive its synchronous engine instead: the thread takes new
requests between steps and passes finished ones to the event loop. All calls of vLLM happen in this thread.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.core.errors import UserError, first_line
from selfimprove.engines.base import EngineError, EngineStats
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm.checks import pass_tokens

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

# Read by vLLM when an engine is built; values that the user has set are kept.
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # It never draws for requests with seeds, as all of ours are, but vLLM compiles it while loading, with CUDA's nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_CPU_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

# Engines of one process (a student and its teacher) share vLLM's global state, so they take turns. Any engine's
# shutdown clears that state; therefore all are shut down when the last one is closed.
_TURN = threading.Lock()
_ALIVE: list[VllmThread] = []
_CLOSED: list[LLMEngine] = []


@dataclass(eq=False)
class _Sample:
    """One sample in progress."""

    id: str
    ids: list[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RequestOutput]


class VllmThread:
    """One vLLM engine, called from an event loop."""

    def __init__(self, cfg: VllmEngineConfig, model_dir: Path, stats: EngineStats) -> None:
        """Load the model, which takes from 10 s on a CPU to minutes on GPUs. ``stats`` gets steps and seconds.

        Raises:
            UserError: vLLM cannot load or place the model.
        """
        self._cfg = cfg
        self._model_dir = model_dir
        self._stats = stats
        self._inbox: queue.SimpleQueue[_Sample | str | None] = queue.SimpleQueue()
        self._count = 0
        self._stopped: UserError | None = None
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(started,), name="vllm", daemon=True)
        self._thread.start()
        error = started.get()
        if error is not None:
            self._thread.join()
            raise UserError(
                f"engine vllm cannot load {model_dir} ({first_line(error)}); fix the param model or context, or free "
                "some memory."
            ) from error

    async def ask(self, prompts: list[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
        """Pass prompts to the thread and wait for all of them; if one fails, the others are aborted.

        Raises:
            EngineError: vLLM refuses one of them.
            UserError: vLLM has crashed, or is closed.
        """
        loop = asyncio.get_running_loop()
        samples = []
        for ids, params in prompts:
            self._count += 1
            samples.append(_Sample(str(self._count), ids, params, loop, loop.create_future()))
            self._inbox.put(samples[-1])
        try:
            if self._stopped is not None:
                raise self._stopped
            return await asyncio.gather(*(sample.future for sample in samples))
        except BaseException:
            for sample in samples:
                sample.future.cancel()
                self._inbox.put(sample.id)
            raise

    async def close(self) -> None:
        """End the thread; waiting requests are cancelled. Closing the last engine frees the memory of all."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run(self, started: queue.SimpleQueue[Exception | None]) -> None:
        try:
            with _TURN:
                engine = self._build()
                _ALIVE.append(self)
        except Exception as error:  # reported by the constructor
            started.put(error)
            return
        started.put(None)
        running: dict[str, _Sample] = {}
        try:
            while self._take(engine, running):
                if engine.has_unfinished_requests():
                    self._step(engine, running)
        except Exception as error:  # vLLM's state is undefined from here on: the engine cannot be used again
            self._stopped = UserError(
                f"engine vllm failed ({first_line(error)}); run the stage again (finished work is kept); if memory ran "
                "out, lower gpu_memory or max_sequences first."
            )
            for sample in running.values():
                _answer(sample, self._stopped)
        else:
            self._stopped = UserError("engine vllm is closed; create a new one.")
            for sample in running.values():
                if not sample.loop.is_closed():
                    sample.loop.call_soon_threadsafe(sample.future.cancel)
        self._drain(self._stopped)
        with _TURN:
            _ALIVE.remove(self)
            _CLOSED.append(engine)
            if not _ALIVE:
                _shut_down()

    def _build(self) -> LLMEngine:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        import torch

        if torch.backends.cuda.matmul.fp32_precision == "tf32":
            # vLLM sets this process's precision. Keep that of a trainer that shares the process (rl.tf32).
            os.environ.setdefault("VLLM_FLOAT32_MATMUL_PRECISION", "high")
        from vllm.platforms import current_platform

        arguments: dict[str, Any] = {}
        if current_platform.is_cpu():
            for name, value in _CPU_SETTINGS.items():
                os.environ.setdefault(name, value)
            _let_llvmlite_be_scanned()
            # On a CPU, seeded sampling crashes with chunked prefill, and compiling costs more than it saves.
            arguments = {"enable_chunked_prefill": False, "enforce_eager": True, "block_size": 32}
            arguments["max_num_batched_tokens"] = max(self._cfg.context, 4096, self._cfg.max_sequences)
        else:
            arguments = {"gpu_memory_utilization": self._cfg.gpu_memory, "enforce_eager": self._cfg.enforce_eager}
            arguments["max_num_batched_tokens"] = pass_tokens(self._cfg)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(
            EngineArgs(
                model=str(self._model_dir),
                dtype=self._cfg.dtype,
                max_model_len=self._cfg.context,
                max_num_seqs=self._cfg.max_sequences,
                tensor_parallel_size=self._cfg.tensor_parallel,
                enable_prefix_caching=self._cfg.prefix_caching,
                trust_remote_code=self._cfg.trust_remote_code,
                generation_config="vllm",  # sampling settings come only from the request
                logprobs_mode="raw_logprobs",
                seed=0,
                disable_log_stats=True,
                **arguments,
            )
        )

    def _take(self, engine: LLMEngine, running: dict[str, _Sample]) -> bool:
        """Take waiting requests (if idle, wait for one); False if the engine is to end."""
        idle = not engine.has_unfinished_requests()
        while True:
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            idle = False
            if item is None:
                return False
            if isinstance(item, str):
                if running.pop(item, None) is not None:
                    engine.abort_request([item])
                continue
            running[item.id] = item  # before the call: if it ends the engine, this sample gets an answer as well
            try:
                engine.add_request(item.id, {"prompt_token_ids": item.ids}, item.params)
            except refusals() as error:
                del running[item.id]
                _answer(item, refused(error))

    def _step(self, engine: LLMEngine, running: dict[str, _Sample]) -> None:
        began = time.monotonic()
        self._stats.slot_steps += self._cfg.max_sequences
        self._stats.busy_slot_steps += min(engine.get_num_unfinished_requests(), self._cfg.max_sequences)
        with _TURN:
            outputs = engine.step()
        for output in outputs:
            sample = running.pop(output.request_id, None) if output.finished else None
            if sample is not None:
                _answer(sample, output)
        self._stats.seconds += time.monotonic() - began

    def _drain(self, error: UserError) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, _Sample):
                _answer(item, error)


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions that vLLM raises when it refuses the settings or the prompt of one request."""
    from vllm.exceptions import VLLMClientError

    return (VLLMClientError, ValueError)


def refused(error: Exception) -> EngineError:
    """The failure of the one request that vLLM refuses."""
    return EngineError(f"vLLM refuses the request ({first_line(error)})")


def _let_llvmlite_be_scanned() -> None:
    """On a CPU, vLLM looks for its kernels in the attributes of all imported modules.

    llvmlite (used by numba, which BM25 imports) returns a function for any attribute, even ``__dict__``, and vLLM's
    scan fails on it. This puts the empty dictionary that vLLM expects into llvmlite's table of known functions.
    """
    if "llvmlite.binding.ffi" in sys.modules:
        sys.modules["llvmlite.binding.ffi"].lib._fntab["__dict__"] = {}


def _answer(sample: _Sample, result: RequestOutput | Exception) -> None:
    def settle() -> None:
        if sample.future.done():
            return
        if isinstance(result, Exception):
            sample.future.set_exception(result)
        else:
            sample.future.set_result(result)

    if not sample.loop.is_closed():
        sample.loop.call_soon_threadsafe(settle)


def _shut_down() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    while _CLOSED:
        _CLOSED.pop().engine_core.shutdown()
    cleanup_dist_env_and_memory()
