"""The plan of a run: the assignment of examples to steps, micro-batches and rows, computed from lengths only.

A step's examples depend only on the seed and the batch size. Their layout (rows of about ``row_tokens``, micro-batches
of at most ``micro_batch_tokens``, one share per process) affects speed and memory, but not the loss. Conversations are
never split: several share a row without attending to each other.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from selfimprove.core.seeds import rng

Row = tuple[int, ...]
"""Indices of the examples that share one row."""

GROUP = 64
"""Number of steps whose examples are sorted by length together."""

MAX_PADDING = 0.04
"""Largest share of padding when rows are grouped; a row that would exceed it starts the next micro-batch."""

MicroBatch = tuple[Row, ...]
"""Rows that a process computes at once; empty if a small last step leaves the process without work."""


@dataclass(frozen=True)
class OptimiserStep:
    """One optimiser step: ``examples`` in draw order, and an equal number of micro-batches for each process.

    ``tokens``: of the examples, context included.
    """

    examples: tuple[int, ...]
    shares: tuple[tuple[MicroBatch, ...], ...]
    tokens: int = 0


@dataclass(frozen=True)
class PackingPlan:
    """All steps of a run, and their token counts.

    Attributes:
        real_tokens: tokens of all examples read, including context and repetitions.
        padded_tokens: the same plus the padding that makes rows rectangular.
    """

    steps: tuple[OptimiserStep, ...]
    examples: int
    real_tokens: int
    padded_tokens: int

    @property
    def padding(self) -> float:
        """Share of computed positions without a token, 0 to 1."""
        return 1.0 - self.real_tokens / self.padded_tokens if self.padded_tokens else 0.0


def make_plan(
    lengths: Sequence[int],
    *,
    batch_size: int,
    row_tokens: int,
    micro_batch_tokens: int,
    seed: int,
    epochs: float = 1.0,
    max_tokens: int | None = None,
    world_size: int = 1,
    group_by_length: bool = False,
    whole_epochs: bool = False,
    filled: bool = True,
) -> PackingPlan:
    """Plan a run over examples of the given ``lengths`` (in tokens, each at least 1).

    Every epoch contains each example once, in a new order drawn for (seed, epoch). Steps take ``batch_size`` examples
    from that stream, across epoch boundaries, and only the last may be smaller. With ``whole_epochs``, steps do not
    cross epoch boundaries, so that an epoch has ceil(n / batch_size) steps. The stream ends after round(epochs * n)
    examples. With ``max_tokens`` it instead repeats as needed and ends after the step that brings ``real_tokens`` to at
    least that number (``epochs`` is then ignored). With ``group_by_length``, each step has examples of similar length
    (from ``GROUP`` steps' worth of the drawn order, sorted), which reduces padding; the order of steps is drawn again.
    Only a step that crosses an epoch boundary has examples of any length.

    Rows are ``filled`` to equal width or laid end to end. No row exceeds ``row_tokens`` or, if that is longer, the
    process's longest example of the step; with ``row_tokens`` 1 each example has a row of its own. A micro-batch
    exceeds ``micro_batch_tokens`` only if a single row does. Padding is at most ``MAX_PADDING`` of a process's share of
    a step. Where a micro-batch is split so that all processes have equally many, a part may have a larger share of
    padding, and a process without a row computes one token of it.
    """
    if not lengths:
        return PackingPlan((), 0, 0, 0)
    steps: list[OptimiserStep] = []
    examples = real = padded = 0
    remaining = round(epochs * len(lengths))
    stream = _stream(lengths, seed, batch_size if group_by_length else 0, whole_epochs)
    while (real < max_tokens) if max_tokens is not None else (remaining > 0):
        size = batch_size if max_tokens is not None else min(batch_size, remaining)
        if whole_epochs:
            size = min(size, len(lengths) - examples % len(lengths))
        batch = tuple(next(stream) for _ in range(size))
        shares = lay_out(batch, lengths, row_tokens, micro_batch_tokens, world_size, filled)
        steps.append(OptimiserStep(batch, shares, sum(lengths[i] for i in batch)))
        remaining -= size
        examples += size
        real += steps[-1].tokens
        padded += sum(computed_tokens(micro, lengths, filled) for share in shares for micro in share)
    return PackingPlan(tuple(steps), examples, real, padded)


def lay_out(
    batch: Sequence[int],
    lengths: Sequence[int],
    row_tokens: int,
    micro_batch_tokens: int,
    world_size: int,
    filled: bool = True,
) -> tuple[tuple[MicroBatch, ...], ...]:
    """Distribute examples to processes with nearly equal numbers of tokens, then to rows and micro-batches.

    ``batch`` must not be empty.
    """
    hands = [hand for _, hand in _deal(batch, lengths, world_size)]
    shares = [
        _micro_batches(pack_rows(hand, lengths, row_tokens), lengths, micro_batch_tokens, filled) if hand else []
        for hand in hands
    ]
    most = max(len(share) for share in shares)
    return tuple(tuple(_split_to(share, most)) for share in shares)


def _micro_batches(
    rows: Sequence[Row], lengths: Sequence[int], micro_batch_tokens: int, filled: bool
) -> list[MicroBatch]:
    """Group neighbouring rows, as far as the limits on tokens and padding allow."""
    micros: list[MicroBatch] = []
    group: list[Row] = []
    widest = held = 0
    for row in rows:  # widest first, so a group's first row sets its width
        width = _width(row, lengths)
        computed = widest * (len(group) + 1) if filled else held + width
        if group and (computed > micro_batch_tokens or held + width < (1 - MAX_PADDING) * computed):
            micros.append(tuple(group))
            group, held = [], 0
        if not group:
            widest = width
        group.append(row)
        held += width
    return [*micros, tuple(group)]


def pack_rows(batch: Sequence[int], lengths: Sequence[int], row_tokens: int) -> list[Row]:
    """Distribute examples to the fewest rows of nearly equal width, widest row first.

    A row is added until the widest does not exceed its limit. With ``row_tokens`` 1, rows are never shared.
    """
    if row_tokens == 1:
        return [(index,) for index in sorted(batch, key=lambda index: -lengths[index])]
    total = sum(lengths[index] for index in batch)
    limit = max(row_tokens, *(lengths[index] for index in batch))
    count = math.ceil(total / limit)
    while True:
        rows = _deal(batch, lengths, count)
        if max(width for width, _ in rows) <= limit:
            break
        count += 1
    return [row for width, row in sorted(rows, key=lambda item: -item[0]) if width]


def _deal(batch: Sequence[int], lengths: Sequence[int], count: int) -> list[tuple[int, Row]]:
    """Tokens and examples of ``count`` groups; longest examples first, each to the group with the fewest tokens."""
    hands: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, hand) for hand in range(count)]
    for index in sorted(batch, key=lambda index: -lengths[index]):
        held, fewest = heap[0]
        hands[fewest].append(index)
        heapq.heapreplace(heap, (held + lengths[index], fewest))
    return [(held, tuple(hands[hand])) for held, hand in sorted(heap, key=lambda item: item[1])]


def computed_tokens(micro: MicroBatch, lengths: Sequence[int], filled: bool = True) -> int:
    """Number of positions computed for a micro-batch: rows times the widest row; 1 (a padding token) if it is empty."""
    widths = [_width(row, lengths) for row in micro]
    return max(1, len(micro) * max(widths, default=0) if filled else sum(widths))


def _width(row: Row, lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in row)


def _stream(lengths: Sequence[int], seed: int, group: int, whole_epochs: bool) -> Iterator[int]:
    """Example indices, epoch after epoch. ``group``: size of batches of similar length (0: no grouping)."""
    epoch = 0
    while True:
        draws = rng(seed, "epoch", epoch)
        order = list(range(len(lengths)))
        draws.shuffle(order)
        if group:
            begun = 0 if whole_epochs else -epoch * len(order) % group  # these complete the last epoch's last step
            order = order[:begun] + _grouped(order[begun:], lengths, group, draws)
        yield from order
        epoch += 1


def _grouped(order: list[int], lengths: Sequence[int], group: int, draws: Random) -> list[int]:
    batches: list[list[int]] = []
    for start in range(0, len(order), GROUP * group):
        alike = sorted(order[start : start + GROUP * group], key=lambda index: lengths[index])
        batches += [alike[i : i + group] for i in range(0, len(alike), group)]
    partial = [batches.pop()] if batches and len(batches[-1]) < group else []
    draws.shuffle(batches)
    return [index for batch in [*batches, *partial] for index in batch]  # last, so that all other steps are full


def _split_to(micros: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
    """Split the largest micro-batches until there are ``count``; add empty ones only if no rows are left to split."""
    micros = list(micros)
    while len(micros) < count:
        largest = max(range(len(micros)), key=lambda i: len(micros[i]), default=0)
        rows = micros[largest] if micros else ()
        if len(rows) < 2:
            micros.append(())
            continue
        half = (len(rows) + 1) // 2
        micros[largest : largest + 1] = [rows[:half], rows[half:]]
    return micros
