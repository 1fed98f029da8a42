"""State of the sequences being decoded, stored as arrays so that one step advances all of them.

A sample is one completion of a request; a request for n samples takes n slots, not necessarily at the same time. A
sample's result does not depend on its slot, so it may be moved.
"""

import asyncio
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
import torch

from selfimprove.engines.base import Completion, Request
from selfimprove.engines.sampling import choose, uniforms


@dataclass(eq=False)
class PendingRequest:
    """A request in progress: first prefilled (``blocks`` grow), then sampled (``placed`` of n have had a slot)."""

    request: Request
    ids: list[int]
    future: asyncio.Future[list[Completion]]
    names: list[bytes]
    trie: dict[int, dict] | None
    blocks: list[torch.Tensor] = field(default_factory=list)
    done: int = 0
    placed: int = 0
    results: dict[int, Completion] = field(default_factory=dict)

    @property
    def to_read(self) -> int:
        """Number of tokens to prefill: all for a choice, else all but the last, which the first decoding step takes."""
        return len(self.ids) if self.request.choice else len(self.ids) - 1


class Samples:
    """The samples in ``slots`` rows.

    Attributes:
        busy: [slots] bool, which slots are occupied.
        job, sample: each slot's request, and the index of its sample.
        token, position: [slots] int64, the next input token and its position.
        count: [slots] int64, tokens drawn so far; ``drawn`` and ``logprob`` [slots, context] hold them.
        nodes: for slots with allowed outputs, the current node of the trie.
        with_stop: the slots with stop strings.
    """

    def __init__(self, slots: int, context: int, vocabulary: int, pad_id: int, stop_ids: Set[int]) -> None:
        self._pad_id = pad_id
        self.job: list[PendingRequest | None] = [None] * slots
        self.sample = np.zeros(slots, dtype=np.int64)
        self.busy = np.zeros(slots, dtype=bool)
        self.token = np.full(slots, pad_id, dtype=np.int64)
        self.position = np.zeros(slots, dtype=np.int64)
        self.count = np.zeros(slots, dtype=np.int64)
        self.drawn = np.zeros((slots, context), dtype=np.int64)
        self.logprob = np.zeros((slots, context), dtype=np.float32)
        self._key = np.zeros(slots, dtype=np.uint64)
        self._limit = np.ones(slots, dtype=np.int64)
        self._temperature = np.zeros(slots, dtype=np.float32)
        self._top_p = np.ones(slots, dtype=np.float32)
        self._top_k = np.zeros(slots, dtype=np.int64)
        self._all = np.arange(slots)
        self._ends = np.zeros(vocabulary, dtype=bool)
        self._ends[list(stop_ids)] = True
        self.with_stop: set[int] = set()
        self.nodes: dict[int, dict] = {}

    def ends(self, token: int) -> bool:
        """Whether a token ends a completion."""
        return bool(self._ends[token])

    def start(self, slot: int, job: PendingRequest, sample: int) -> None:
        """Start a sample of a prefilled prompt, whose last token is fed first."""
        request = job.request
        self.job[slot], self.sample[slot] = job, sample
        self.busy[slot] = True
        self.token[slot], self.position[slot] = job.ids[-1], len(job.ids) - 1
        self._key[slot] = request.seed.at(request.seed.sample + sample).bits()
        self.count[slot], self._limit[slot] = 0, request.max_tokens
        self._temperature[slot], self._top_p[slot] = request.temperature, request.top_p
        self._top_k[slot] = request.top_k
        if request.stop:
            self.with_stop.add(slot)
        if job.trie is not None:
            self.nodes[slot] = job.trie

    def free(self, slot: int) -> None:
        self.job[slot] = None
        self.busy[slot] = False
        self.token[slot], self.position[slot], self.count[slot] = self._pad_id, 0, 0
        self._temperature[slot], self._top_p[slot], self._top_k[slot] = 0.0, 1.0, 0
        self.with_stop.discard(slot)
        self.nodes.pop(slot, None)

    def move(self, slot: int, to: int) -> None:
        """Move a sample to a free slot."""
        for one in (
            self.sample, self.busy, self.token, self.position, self.count, self._key, self._limit,
            self._temperature, self._top_p, self._top_k,
        ):  # fmt: skip
            one[to] = one[slot]
        written = self.count[slot]
        self.drawn[to, :written], self.logprob[to, :written] = self.drawn[slot, :written], self.logprob[slot, :written]
        self.job[to] = self.job[slot]
        if slot in self.with_stop:
            self.with_stop.add(to)
        if slot in self.nodes:
            self.nodes[to] = self.nodes[slot]
        self.free(slot)

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor) -> list[int]:
        """Append a token to every sample, drawn from ``logits`` [slots, vocabulary]; returns the slots that ended."""
        device, busy = logits.device, self.busy
        drawn, logprob = choose(
            logits,
            torch.from_numpy(uniforms(self._key, self.count.astype(np.uint64))).to(device),
            torch.from_numpy(self._temperature).to(device),
            torch.from_numpy(self._top_p).to(device) if (self._top_p < 1).any() else None,
            self._alike(),
            torch.from_numpy(self._top_k).to(device) if self._top_k.any() else None,
        )
        ids = drawn.cpu().numpy()
        self.drawn[self._all, self.count] = ids
        self.logprob[self._all, self.count] = logprob.cpu().numpy()
        self.token[busy] = ids[busy]
        self.position += busy
        self.count += busy
        for slot, node in self.nodes.items():
            self.nodes[slot] = node[int(ids[slot])]
        return indices(busy & self._ends[ids])

    def full(self) -> list[int]:
        """Slots whose samples have reached their maximum number of tokens."""
        return indices(self.busy & (self.count >= self._limit))

    def _alike(self) -> list[tuple[list[int], list[int]]]:
        """Groups of slots that may draw the same tokens next, each with those tokens."""
        groups: dict[int, tuple[list[int], list[int]]] = {}
        for slot, node in self.nodes.items():
            groups.setdefault(id(node), ([], list(node)))[0].append(slot)
        return list(groups.values())


def indices(rows: np.ndarray) -> list[int]:
    """Indices of the set flags."""
    return [int(row) for row in np.flatnonzero(rows)]
