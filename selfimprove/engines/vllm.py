"""vLLM in this process: on GPUs the engine for real models, on a CPU a second opinion on our own.

vLLM's asynchronous front needs a second process, so we drive its synchronous engine instead: one thread owns it, takes
new requests between any two steps (they join the running batch) and hands finished ones back to the event loop. All of
vLLM's calls happen in that thread. Prompts are token ids from our chat format, and each sample is a request of its own
with the seed of its own key, because vLLM seeds the children of one request with seed + index.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.chat import ChatFormat
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request, first_stop
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.errors import UserError
from selfimprove.records import Message

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

# Read by vLLM when an engine is built; a value the user has set stays.
_SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
_CPU_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

# Engines of one process (a student and its teacher) share vLLM's global state: they take turns, and as any engine's
# shutdown clears that state, all are shut down when the last is closed.
_TURN = threading.Lock()
_ALIVE: list[VllmEngine] = []
_CLOSED: list[LLMEngine] = []


@dataclass(eq=False)
class _Sample:
    """One sample on its way through the engine's thread."""

    id: str
    ids: list[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RequestOutput]


class VllmEngine:
    """Continuous batching by vLLM, with prefix caching.

    Promises: the samples depend on their seed keys and the vLLM version; in float32 on a CPU they were measured not to
    depend on the batch. On GPUs and in bfloat16 that is not promised. A completion that a stop string cuts inside a
    token has neither ``token_ids`` nor ``logprobs``: no ids spell it.
    """

    def __init__(self, cfg: VllmEngineConfig, model_dir: Path) -> None:
        """Load the model; takes from 10 s on a CPU to minutes on GPUs.

        Raises:
            UserError: vLLM is not installed, or cannot load or place the model.
        """
        if find_spec("vllm") is None:
            raise UserError(
                "engine vllm: the package vllm is not installed here; on a GPU machine run `make setup "
                "ACCELERATOR=cuda`, on a CPU `make env-vllm` and use .venvs/vllm/bin/python (docs/engines.md)."
            )
        self.stats = EngineStats()
        self.chat = ChatFormat.load(model_dir, cfg.chat_template)
        self.context = cfg.context
        self._cfg = cfg
        self._model_dir = model_dir
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
                f"engine vllm cannot load {model_dir} ({_first_line(error)}); mend model, context or the memory."
            ) from error

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order.

        Raises:
            EngineError: prompt and ``max_tokens`` exceed the context, or vLLM refuses the request.
            UserError: the chat template refuses the messages, ``choice`` is set, or vLLM has broken down.
        """
        if request.choice:
            raise UserError("engine vllm tells no probabilities of a choice; name engine transformers instead.")
        self.stats.requests += 1
        prompt = self.chat.encode(request.messages, add_generation_prompt=True)
        ids = prompt.cut_left(self.context - request.max_tokens) if request.cut_left else prompt.ids
        if len(ids) + request.max_tokens > self.context:
            self.stats.failures += 1
            raise EngineError(
                f"the prompt has {len(ids)} tokens; with max_tokens {request.max_tokens} it exceeds the engine's "
                f"context of {self.context}"
            )
        self.stats.prompt_tokens += len(ids)
        try:
            outputs = await self._ask([(ids, self._params(request, index)) for index in range(request.n)])
            logprobs = [_logprobs(output) for output in outputs]
            if request.allowed is not None:
                logprobs = await self._score([(ids, list(output.outputs[0].token_ids)) for output in outputs])
        except EngineError:
            self.stats.failures += 1
            raise
        except _refusals() as error:
            self.stats.failures += 1
            raise _refused(error) from None
        self.stats.completions += len(outputs)
        self.stats.cached_prompt_tokens += outputs[0].num_cached_tokens or 0
        return [self._completion(o, request, p) for o, p in zip(outputs, logprobs, strict=True)]

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether the prompt and ``max_tokens`` more fit the context."""
        return len(self.chat.encode(messages, add_generation_prompt=True).ids) + max_tokens <= self.context

    async def close(self) -> None:
        """End the thread; requests that still wait are cancelled. The last engine to close frees the memory of all."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _params(self, request: Request, index: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        constraint = None
        if request.allowed is not None:
            constraint = StructuredOutputsParams(choice=list(request.allowed))
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_tokens,
            seed=request.seed.at(request.seed.sample + index).bits() >> 1,  # vLLM takes 63 bits
            stop=list(request.stop) or None,
            stop_token_ids=sorted(self.chat.stop_ids),
            structured_outputs=constraint,
            logprobs=0,  # of the sampled token alone
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def _ask(self, prompts: list[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
        """Hand prompts to the thread and wait for all; whatever goes wrong, none of them is left running."""
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

    async def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Log-probabilities of answers under the unconstrained model; sampling reports the constrained one's."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY
        )
        outputs = await self._ask([(prompt + answer, params) for prompt, answer in pairs])
        scores = []
        for (prompt, answer), output in zip(pairs, outputs, strict=True):
            rows = list(output.prompt_logprobs or [])[len(prompt) :]
            scores.append([float(row[token].logprob) for token, row in zip(answer, rows, strict=True)])
        return scores

    def _completion(self, output: RequestOutput, request: Request, logprobs: list[float]) -> Completion:
        sample = output.outputs[0]
        ids = list(sample.token_ids)
        self.stats.generated_tokens += len(ids)
        by_text = isinstance(sample.stop_reason, str)
        if sample.finish_reason == "stop" and not by_text and ids[-1:] and ids[-1] in self.chat.stop_ids:
            ids = ids[:-1]  # the end-of-turn token; its log-probability stays
        text = self.chat.decode(ids)
        found = first_stop(text, request.stop)
        if found is not None:
            return self._cut(text[: found[1] if request.keep_stop else found[0]], ids, logprobs)
        if by_text:  # vLLM saw the stop string where our decoder does not
            return self._cut(sample.text, ids, logprobs)
        return Completion(text, "length" if sample.finish_reason == "length" else "stop", ids, logprobs)

    def _cut(self, text: str, ids: list[int], logprobs: list[float]) -> Completion:
        for count in range(len(ids) + 1):
            if self.chat.decode(ids[:count]) == text:
                return Completion(text, "stop", ids[:count], logprobs[:count])
        return Completion(text, "stop")  # cut inside a token: no ids spell it

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _run(self, started: queue.SimpleQueue[Exception | None]) -> None:
        try:
            with _TURN:
                engine = self._build()
                _ALIVE.append(self)
        except Exception as error:  # whatever vLLM raises is reported by the constructor
            started.put(error)
            return
        started.put(None)
        running: dict[str, _Sample] = {}
        try:
            while self._take(engine, running):
                if not engine.has_unfinished_requests():
                    continue
                began = time.monotonic()
                self.stats.slot_steps += self._cfg.max_sequences
                self.stats.busy_slot_steps += min(engine.get_num_unfinished_requests(), self._cfg.max_sequences)
                with _TURN:
                    outputs = engine.step()
                for output in outputs:
                    sample = running.pop(output.request_id, None) if output.finished else None
                    if sample is not None:
                        _answer(sample, output)
                self.stats.seconds += time.monotonic() - began
        except Exception as error:  # vLLM's state is unknown from here on: nothing can be salvaged but the process
            self._stopped = UserError(
                f"engine vllm broke down ({_first_line(error)}); run the stage again (finished work is kept), with "
                "less gpu_memory or max_sequences if memory ran out."
            )
            for sample in running.values():
                _answer(sample, self._stopped)
        else:
            self._stopped = UserError("engine vllm is closed; make a new one.")
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
        from vllm.platforms import current_platform

        arguments: dict[str, Any] = {}
        if current_platform.is_cpu():
            for name, value in _CPU_SETTINGS.items():
                os.environ.setdefault(name, value)
            # Seeded sampling crashes with chunked prefill on a CPU, and compiling costs more than it saves there.
            arguments = {"enable_chunked_prefill": False, "enforce_eager": True, "block_size": 32}
            arguments["max_num_batched_tokens"] = max(self._cfg.context + 1, 4096)
        else:
            arguments = {"gpu_memory_utilization": self._cfg.gpu_memory, "enforce_eager": self._cfg.enforce_eager}
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(
            EngineArgs(
                model=str(self._model_dir),
                dtype=self._cfg.dtype,
                max_model_len=self._cfg.context + 1,  # room for the token that scoring a full context throws away
                max_num_seqs=self._cfg.max_sequences,
                tensor_parallel_size=self._cfg.tensor_parallel,
                enable_prefix_caching=self._cfg.prefix_caching,
                trust_remote_code=self._cfg.trust_remote_code,
                generation_config="vllm",  # sampling settings come from the request alone
                logprobs_mode="raw_logprobs",
                seed=0,
                disable_log_stats=True,
                **arguments,
            )
        )

    def _take(self, engine: LLMEngine, running: dict[str, _Sample]) -> bool:
        """Take in what waits (when idle, wait for it); False when the engine is to end."""
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
            try:
                engine.add_request(item.id, {"prompt_token_ids": item.ids}, item.params)
                running[item.id] = item
            except _refusals() as error:
                _answer(item, _refused(error))

    def _drain(self, error: UserError) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, _Sample):
                _answer(item, error)


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


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises when it refuses the settings or the prompt of one request."""
    from vllm.exceptions import VLLMClientError

    return (VLLMClientError, ValueError)


def _refused(error: Exception) -> EngineError:
    return EngineError(f"vLLM refuses the request ({_first_line(error)})")


def _logprobs(output: RequestOutput) -> list[float]:
    sample = output.outputs[0]
    assert sample.logprobs is not None
    return [float(row[token].logprob) for token, row in zip(sample.token_ids, sample.logprobs, strict=True)]


def _shut_down() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    while _CLOSED:
        _CLOSED.pop().engine_core.shutdown()
    cleanup_dist_env_and_memory()


def _first_line(error: BaseException) -> str:
    lines: Sequence[str] = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
