"""The default engine: continuous batching over a transformers model, exact on CPU.

A single asyncio task serves all waiting ``generate`` calls. A prompt is prefilled in blocks aligned at position 0 (all
but its last token; blocks shared with an earlier prompt are copied from the cache), then each of its samples takes a
free slot. Every step feeds one token to all slots, draws the next ones, and refills the slots that ended.

Guarantee, on CPU in float32 with a given number of threads: a completion's tokens and log-probabilities are identical,
bit for bit, whatever else is in the batch, in any order and number of requests, and after a restart with an empty
cache. This holds because all shapes of a forward pass give a row the same bits (``decoder``), a block's keys and values
depend only on the tokens before its end, and every draw is keyed by (seed key, step). On GPUs, in half precision
and in mixtures of experts the draws are keyed in the same way, but kernels may round differently.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.memory import gpu_memory
from selfimprove.core.params import SMALLEST
from selfimprove.core.records import Finish
from selfimprove.engines.base import Choice, Completion, EngineError, EngineStats, Request, Templated, first_stop
from selfimprove.engines.choices import allowed_trie, decide
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters
from selfimprove.engines.cpu.decoder import Decoder
from selfimprove.engines.cpu.prefill import Prompts
from selfimprove.engines.cpu.samples import PendingRequest, Samples, indices
from selfimprove.models.loading import check_attention, check_vocabulary, load_causal_lm

STILL = 8
"""An idle engine starts when a pass is full, or after this many event-loop turns without a new request."""

LISTS_KNOWN = 4096
"""Maximum cached lists of allowed outputs with their tokens: an environment repeats the same lists of actions."""


class TransformersEngine(Templated):
    """Implements ``engines.base.Engine`` over a model folder.

    Attributes:
        stats: see ``EngineStats``; ``prompt_tokens`` counts a prompt once for its n samples, ``cached_prompt_tokens``
            its copied tokens, ``generated_tokens`` every drawn token (end tokens too).
    """

    def __init__(
        self, cfg: TransformersEngineConfig, model_dir: Path, *, threads: int, model: Any | None = None
    ) -> None:
        """Load the model, or use the given ``model``: a trainer's own, whose tokenizer is in ``model_dir``.

        A trainer may change the weights only in place (CUDA graphs read them at their addresses) and must then call
        ``forget_prefixes``.

        Raises:
            UserError: there is no such folder, no weights or no chat template, the tokenizer is of another model, or
                the context exceeds the model's; or the GPU's memory is exhausted.
        """
        torch.set_num_threads(threads)
        self._less_memory = (
            f"lower the engine's slots ({cfg.slots}), context ({cfg.context}) or prefill_rows ({cfg.prefill_rows})"
        )
        self.chat = ChatFormat.load(model_dir, cfg.chat_template)
        if model is None:
            with self._gpu_memory():
                model = load_causal_lm(
                    model_dir, dtype=cfg.dtype, device=cfg.device, trust_remote_code=cfg.trust_remote_code
                )
        check_vocabulary(model_dir, model, self.chat.vocab_size)
        check_attention(model_dir, model, cfg.context)
        self.context = cfg.context
        slots, prefill_rows = batch_sizes(cfg, stored_parameters(model_dir))
        with self._gpu_memory():
            self._decoder = Decoder(
                model,
                slots=slots,
                context=cfg.context,
                prefill_rows=prefill_rows,
                prefill_block=cfg.prefill_block,
                pad_id=self.chat.pad_id,
            )
        self.stats = EngineStats()
        self._prompts = Prompts(self._decoder, cfg.prefill_block, self.stats)
        self._open: set[PendingRequest] = set()
        self._task: asyncio.Task[None] | None = None

        self._samples = Samples(
            slots, cfg.context, model.get_input_embeddings().num_embeddings, self.chat.pad_id, self.chat.stop_ids
        )
        self._trie = lru_cache(maxsize=LISTS_KNOWN)(partial(allowed_trie, self.chat))

    async def generate(self, request: Request) -> list[Completion]:
        """See ``engines.base.Engine.generate``.

        A stop string cuts ``text`` just before itself; ``token_ids`` and ``logprobs`` are cut to the longest run of
        whole tokens whose text is contained in it (slightly less, if the stop string began inside a token).

        Raises:
            EngineError: the prompt and ``max_tokens`` exceed the context, or the request is invalid.
            UserError: the GPU's memory is exhausted.
        """
        prompt = self.chat.encode(request.messages, add_generation_prompt=True)
        ids = prompt.cut_left(self.context - request.max_tokens) if request.cut_left else prompt.ids
        self._check(request, len(ids))
        trie = None
        if request.allowed is not None:
            try:
                trie = self._trie(tuple(request.allowed), request.choice)
            except ValueError as error:
                raise EngineError(f"{request.seed}: {error}") from None
        # The last token's block is never copied: its logits give the first draw.
        job = PendingRequest(
            request, ids, asyncio.get_running_loop().create_future(), self._prompts.cache.names(ids[:-1]), trie
        )
        self.stats.requests += 1
        self.stats.prompt_tokens += len(ids)
        if request.n == 0:
            return []
        self._open.add(job)
        self._prompts.waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())
        try:
            return await job.future
        finally:
            if job in self._open:
                self._drop(job)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Results do not change; the next prompts are prefilled from scratch."""
        self._prompts.cache.clear()

    async def close(self) -> None:
        """Stop serving; waiting calls are cancelled."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for job in list(self._open):
            job.future.cancel()
            self._drop(job)

    def _gpu_memory(self) -> AbstractContextManager[None]:
        return gpu_memory("engine transformers", self._less_memory)

    def _check(self, request: Request, prompt: int) -> None:
        warm = request.temperature == 0 or request.temperature >= SMALLEST  # in float32, logits / it stay finite
        if request.max_tokens < 1 or request.n < 0 or not warm or not SMALLEST <= request.top_p <= 1:
            raise EngineError(
                f"{request.seed}: max_tokens {request.max_tokens}, n {request.n}, temperature {request.temperature} "
                f"or top_p {request.top_p} is out of range"
            )
        if not prompt:
            raise EngineError(f"{request.seed}: the prompt is empty")
        if prompt + request.max_tokens > self.context:
            raise EngineError(
                f"{request.seed}: a prompt of {prompt} tokens and max_tokens {request.max_tokens} do not fit the "
                f"engine's context of {self.context}"
            )
        if not 0 <= request.top_k < 1 << 63 or (request.choice and request.max_tokens != 1):
            raise EngineError(
                f"{request.seed}: top_k {request.top_k} is out of range, or a choice has max_tokens "
                f"{request.max_tokens} instead of 1"
            )

    def _drop(self, job: PendingRequest) -> None:
        """Remove a request whose caller has been cancelled."""
        self._open.discard(job)
        self._prompts.drop(job)
        for slot, held in enumerate(self._samples.job):
            if held is job:
                self._samples.free(slot)

    async def _serve(self) -> None:
        began = time.perf_counter()
        try:
            with self._gpu_memory():
                while self._open:
                    await self._gather()
                    self._fill()
                    if self._samples.busy.any():
                        self._step()
                    # Callers whose answers are complete run now, and their next requests join the queue.
                    await asyncio.sleep(0)
        except Exception as error:
            # A failure of the model or the machine (out of memory, say) ends every call, so that none waits forever.
            for job in list(self._open):
                if not job.future.done():
                    job.future.set_exception(error)
        finally:
            self.stats.seconds += time.perf_counter() - began

    async def _gather(self) -> None:
        """While this engine is idle, wait for requests that callers are about to make.

        If episodes use two engines alternately, requests arrive one by one while the other engine computes; a pass over
        many costs hardly more than one over few. If nothing else computes, a turn of the loop takes no time.
        """
        still, busy, prompts = 0, self._samples.busy, self._prompts
        while still < STILL and not (prompts.fill_a_pass or prompts.ready or busy.any()):
            before = len(prompts.waiting)
            await asyncio.sleep(0)
            still = 0 if len(prompts.waiting) > before else still + 1

    def _fill(self) -> None:
        """Put prefilled prompts into free slots, and prefill more as long as slots stay free."""
        self._place()
        samples, prompts = self._samples, self._prompts
        while not samples.busy.all() and prompts.worth_reading(samples.busy):
            read = prompts.read()
            if read is not None:
                self._choose(*read)
            self._place()
            if not prompts.fill_a_pass and not samples.busy.any():
                return  # callers whose choices were answered may make requests before the next pass

    def _choose(self, logits: torch.Tensor, jobs: Mapping[int, PendingRequest]) -> None:
        """Answer the choices whose prompts have just been prefilled, from the rows' logits [rows, vocabulary]."""
        asked = {row: (job.request, None if job.trie is None else list(job.trie)) for row, job in jobs.items()}
        with torch.inference_mode():
            for sample in range(max(job.request.n for job in jobs.values())):
                for row, drawn in decide(logits, asked, sample).items():
                    job = jobs[row]
                    if sample >= job.request.n:
                        continue
                    ended = self._samples.ends(drawn.token)
                    ids: list[int] = [] if ended else [drawn.token]
                    finish: Finish = "stop" if ended else "length"
                    choice = Choice(job.ids, drawn.token, drawn.logprob, drawn.entropy)
                    answer = Completion(self.chat.decode(ids), finish, ids, [drawn.model_logprob], choice)
                    self.stats.generated_tokens += 1
                    self._answer(job, sample, answer)

    def _place(self) -> None:
        """Assign free slots to the samples of prefilled prompts, in order."""
        ready = self._prompts.ready
        if not ready:
            return
        for slot in indices(~self._samples.busy):
            if not ready:
                return
            job = ready[0]
            self._decoder.slots.put(slot, job.blocks)
            self._samples.start(slot, job, job.placed)
            job.placed += 1
            if job.placed == job.request.n:
                ready.popleft()
                job.blocks = []

    def _draw_in(self) -> None:
        """Move the last samples down to free slots if a step then computes fewer rows."""
        busy = self._samples.busy
        rows = self._decoder.shapes.rows(max(1, int(busy.sum())))
        for slot, to in zip(indices(busy[rows:]), indices(~busy[:rows]), strict=False):
            self._decoder.slots.move(rows + slot, to, int(self._samples.position[rows + slot]))
            self._samples.move(rows + slot, to)

    def _step(self) -> None:
        """Feed every slot its last token, draw the next, and finish the samples that ended."""
        samples = self._samples
        self._draw_in()
        active = int(samples.busy.sum())
        ended = samples.draw(self._decoder.step(samples.token, samples.position, samples.busy))
        self.stats.slot_steps += len(samples.busy)
        self.stats.busy_slot_steps += active
        self.stats.generated_tokens += active
        for slot in ended:
            self._finish(slot, ended=True)
        for slot in list(samples.with_stop):
            self._look_for_stop(slot)
        for slot in samples.full():
            self._finish(slot, ended=False)

    def _look_for_stop(self, slot: int) -> None:
        """Finish the slot if its text now contains a stop string."""
        job = self._samples.job[slot]
        assert job is not None
        stops = job.request.stop
        count = int(self._samples.count[slot])
        # A newly completed stop string is within the last tokens, of at least a byte each; decoding these is cheap.
        # (Special tokens have no text: among many of them it is found when the sample ends.)
        reach = max(len(stop.encode()) for stop in stops) + 4
        recent = self.chat.decode(self._samples.drawn[slot, max(0, count - reach) : count].tolist())
        if any(stop in recent for stop in stops):
            self._cut(slot, count)

    def _cut(self, slot: int, count: int) -> bool:
        """Finish the slot before the first stop string in its first ``count`` tokens; False if there is none."""
        job = self._samples.job[slot]
        assert job is not None
        ids = self._samples.drawn[slot, :count].tolist()
        text = self.chat.decode(ids)
        found = first_stop(text, job.request.stop)
        if found is None:
            return False
        keep = job.request.keep_stop
        text = text[: found[1] if keep else found[0]]
        kept = next(k for k in range(count, -1, -1) if text.startswith(self.chat.decode(ids[:k])))
        if keep and self.chat.decode(ids[:kept]) != text:
            self._deliver(slot, Completion(text, "stop"))
        else:
            self._deliver(slot, Completion(text, "stop", ids[:kept], self._samples.logprob[slot, :kept].tolist()))
        return True

    def _finish(self, slot: int, *, ended: bool) -> None:
        count = int(self._samples.count[slot])
        if slot in self._samples.with_stop and self._cut(slot, count - ended):
            return
        ids = self._samples.drawn[slot, : count - ended].tolist()
        finish: Finish = "stop" if ended else "length"
        logprobs = self._samples.logprob[slot, :count].tolist()
        self._deliver(slot, Completion(self.chat.decode(ids), finish, ids, logprobs))

    def _deliver(self, slot: int, completion: Completion) -> None:
        job = self._samples.job[slot]
        assert job is not None
        sample = int(self._samples.sample[slot])
        self._samples.free(slot)
        self._answer(job, sample, completion)

    def _answer(self, job: PendingRequest, sample: int, completion: Completion) -> None:
        """Add one completion to a request; its caller gets the list when it is complete."""
        job.results[sample] = completion
        self.stats.completions += 1
        if len(job.results) == job.request.n:
            self._open.discard(job)
            if not job.future.done():
                job.future.set_result([job.results[index] for index in range(job.request.n)])
