"""The prefill queue: prefills prompts in blocks, and holds their KV cache until decoding slots are free.

Blocks are aligned at position 0; a block shared with an earlier prompt is copied from the prefix cache. A pass costs
the same however many of its rows are filled, so an incomplete pass may wait briefly for more prompts.
"""

from collections import deque

import numpy as np
import torch

from selfimprove.engines.base import EngineStats
from selfimprove.engines.cpu.decoder import Decoder
from selfimprove.engines.cpu.samples import PendingRequest
from selfimprove.engines.cpu.slots import PrefixCache

CACHE_BYTES = 256 * 2**20
"""Size limit of the prefix cache, or the size of the slots themselves if that is larger."""

PATIENCE = 0.125
"""An incomplete prefill pass waits until the slots that it keeps idle have lost this fraction of its tokens."""


class Prompts:
    """The prompts that have no slot yet.

    Attributes:
        ready: requests whose prompts are prefilled, in the order in which they get slots.
        waiting: requests with nothing prefilled.
        cache: blocks that later prompts may share.
    """

    def __init__(self, decoder: Decoder, block: int, stats: EngineStats) -> None:
        """Every prefill row of ``decoder`` takes ``block`` tokens per pass."""
        _, slots, _, context, _ = decoder.slots.kv.shape
        slot_bytes = decoder.slots.kv.nbytes
        self.cache = PrefixCache(block, max(slot_bytes, CACHE_BYTES) // (slot_bytes // (slots * context) * block))
        self.waiting: deque[PendingRequest] = deque()
        self.ready: deque[PendingRequest] = deque()
        self._reading: list[PendingRequest | None] = [None] * decoder.reading.kv.shape[1]
        self._decoder, self._block, self._stats = decoder, block, stats
        self._lost = 0

    def drop(self, job: PendingRequest) -> None:
        """Remove a request whose caller has been cancelled."""
        for queue in (self.waiting, self.ready):
            if job in queue:
                queue.remove(job)
        self._reading = [None if held is job else held for held in self._reading]

    @property
    def pending(self) -> int:
        """Number of prompts that are being prefilled or wait for it."""
        return sum(job is not None for job in self._reading) + len(self.waiting)

    @property
    def fill_a_pass(self) -> bool:
        """Whether every row of a prefill pass would have a prompt."""
        return self.pending >= len(self._reading)

    def worth_reading(self, busy: np.ndarray) -> bool:
        """Whether to prefill now, given the occupied slots ``busy`` [slots]."""
        if self.pending == 0:
            return False
        if self.pending > len(self.waiting) or self.fill_a_pass or not busy.any():
            self._lost = 0
            return True
        wanted = sum(job.request.n for job in self.waiting)
        self._lost += min(int(len(busy) - busy.sum()), wanted)
        if self._lost < PATIENCE * len(self._reading) * self._block:
            return False
        self._lost = 0
        return True

    def read(self) -> tuple[torch.Tensor, dict[int, PendingRequest]] | None:
        """Run one prefill pass: each row takes the next block of its prompt; completed prompts become ready.

        Choices are answered from the pass itself: returns the logits [rows, vocabulary] and their requests by row.
        """
        block, rows = self._block, self._decoder.reading
        work = []
        for row, job in enumerate(self._reading):
            while job is None and self.waiting:
                job = self._begin(self.waiting.popleft(), row)
            self._reading[row] = job
            if job is not None:
                work.append((row, job, job.ids[job.done : min(job.done + block, job.to_read)]))
        if not work:
            return None
        ends = {row: job for row, job, tokens in work if job.request.choice and job.done + len(tokens) == job.to_read}
        last = {row: len(tokens) - 1 for row, _, tokens in work if row in ends}
        logits = self._decoder.read([(row, job.done, tokens) for row, job, tokens in work], last)
        self._stats.prefill_blocks += len(work)
        self._stats.prefill_block_slots += len(self._reading)
        for row, job, tokens in work:
            whole = len(tokens) == block and len(job.blocks) < len(job.names)
            if whole or not job.request.choice:
                read = rows.take(row, job.done, job.done + len(tokens))
                if whole:
                    self.cache.keep(job.names[len(job.blocks)], read)
                job.blocks.append(read)
            job.done += len(tokens)
            if job.done == job.to_read:
                self._reading[row] = None
                if not job.request.choice:
                    self.ready.append(job)
        return None if logits is None else (logits, ends)

    def _begin(self, job: PendingRequest, row: int) -> PendingRequest | None:
        """Copy the cached blocks of a prompt to its row; None if they cover it completely."""
        job.blocks = self.cache.find(job.names)
        job.done = len(job.blocks) * self._block
        self._stats.cached_prompt_tokens += job.done
        if job.done == job.to_read:
            self.ready.append(job)
            return None
        self._decoder.reading.put(row, job.blocks)
        return job
