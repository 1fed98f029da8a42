"""One model behind two calls with few shapes: prefill a block of some prompts; decode one token of every busy slot.

On CPU in float32 a row's result is a pure function of that row's own tokens, to the last bit: matrix products of one
shape treat every row alike, and masked positions add exact zeros. (Mixtures of experts are an exception: a product
there has as many rows as tokens are sent to an expert.) Computing fewer rows and attending over fewer masked positions
is faster, and some smaller shapes give exactly the bits of the full one. Which ones do depends on the kernels of the
machine, so this is tested when the decoder is created (``_exact``), and no other shape is used.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from selfimprove.engines.cpu.attention import use_one_query_attention
from selfimprove.engines.cpu.batching import halvings
from selfimprove.engines.cpu.forward import Forward
from selfimprove.engines.cpu.graphs import Graphs
from selfimprove.engines.cpu.llama import Llama
from selfimprove.engines.cpu.slots import Rows, cache_shape

WIDTH_STEP = 32
"""Attention widths are multiples of this, or of a fraction of the context, if that is larger."""

WIDTHS = 16
"""Attention widths of a small model. In a large one, attention is a smaller part of the work, so fewer are tested."""

PARTS = 8
"""Numbers of rows are multiples of this fraction of all rows."""

GPU_WIDTHS, GPU_HALVINGS = 4, 3
"""On GPUs, where every shape is recorded (``graphs``): attention widths, and how often the number of rows is halved."""


class Module:
    """The implementation by the library, for any causal language model."""

    def __init__(self, model: Any) -> None:
        use_one_query_attention(model)
        self._model = model

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        if last is None:
            self._through(self._model.base_model, rows, ids, at, seen)
            return None
        logits: torch.Tensor = self._through(self._model, rows, ids, at, seen).logits
        return logits[torch.arange(len(last), device=last.device), last]

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return self._through(self._model, rows, ids, at, seen).logits[:, 0]

    def _through(self, module: Any, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> Any:
        mask = torch.zeros(seen.shape, dtype=rows.kv.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
        return module(
            input_ids=ids, attention_mask=mask[:, None], position_ids=at, past_key_values=rows.cache, use_cache=True
        )


@dataclass(frozen=True)
class Shapes:
    """The allowed numbers of rows and attention widths of a pass, ascending; the last ones are the full ones."""

    counts: list[int]
    widths: list[int]

    def rows(self, needed: int) -> int:
        """The smallest allowed number of rows that is at least ``needed``."""
        return self.counts[bisect_left(self.counts, needed)]

    def width(self, needed: int) -> int:
        """The smallest allowed width that is at least ``needed``."""
        return self.widths[bisect_left(self.widths, needed)]


class Decoder:
    """A causal language model with ``slots`` decoding rows and ``prefill_rows`` prefill rows.

    Attributes:
        slots: keys and values of the decoding rows, [context] positions each.
        reading: those of the prefill rows, from which prompts are copied into the slots.
        shapes, reading_shapes: the allowed shapes of their passes.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        context: int,
        prefill_rows: int,
        prefill_block: int,
        pad_id: int,
    ) -> None:
        self._block, self._context = prefill_block, context
        self._weight = model.get_input_embeddings().weight
        shape = cache_shape(model)
        whole = -(-context // prefill_block) * prefill_block
        with torch.inference_mode():
            self.slots = Rows(shape, slots, context, self._weight.device)
            self.reading = Rows(shape, prefill_rows, whole, self._weight.device)
            self._columns = torch.arange(whole, device=self._weight.device)
            self._logits = torch.zeros(max(slots, prefill_rows), len(self._weight), device=self._weight.device)
        self._forward: Forward = Llama.of(model, context) or Module(model)
        if self.device.type == "cuda":
            self._forward = Graphs(self._forward)
        self._pad = np.full((prefill_rows, prefill_block), pad_id, dtype=np.int64)
        self._offsets = np.arange(prefill_block, dtype=np.int64)
        widths = max(1, WIDTHS >> halvings(sum(weight.numel() for weight in model.parameters())))
        step = max(WIDTH_STEP, context // widths // WIDTH_STEP * WIDTH_STEP)
        narrow = range(step, context, step)
        self.shapes = self._exact(self.slots, 1, narrow)
        self.reading_shapes = self._exact(self.reading, prefill_block, narrow)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return torch.device(self._weight.device)

    def read(
        self, work: Sequence[tuple[int, int, Sequence[int]]], ends: Mapping[int, int] | None = None
    ) -> torch.Tensor | None:
        """Prefill one block of some prefill rows, computing its keys and values.

        Args:
            work: (row, first position, at most ``prefill_block`` ids) each; the positions before the first must
                have been prefilled or copied there.
            ends: by row, the index in the block at which its prompt ends.

        Returns:
            With ``ends``, the float32 next-token logits [prefill rows, vocabulary] at these indices; the contents of
            other rows are undefined.
        """
        count = self.reading_shapes.rows(max(row for row, _, _ in work) + 1)
        ids, starts = self._pad[:count].copy(), np.zeros(count, dtype=np.int64)
        for row, start, tokens in work:
            ids[row, : len(tokens)] = tokens
            starts[row] = start
        positions = starts[:, None] + self._offsets
        width = self.reading_shapes.width(int(starts.max()) + self._block)
        last = None
        if ends:
            last = torch.zeros(count, dtype=torch.int64, device=self.device)
            last[list(ends)] = torch.tensor(list(ends.values()), device=self.device)
        with torch.inference_mode():
            logits = self._forward.read(self.reading, *self._aim(self.reading, ids, positions, width), last)
            return None if logits is None else self._all_rows(logits.float(), len(self._pad))

    def step(self, ids: np.ndarray, positions: np.ndarray, busy: np.ndarray) -> torch.Tensor:
        """float32 next-token logits [slots, vocabulary] after feeding one token to every busy slot.

        Args:
            ids, positions: [slots] int64, each token and its position; idle slots hold any valid pair.
            busy: [slots] bool, at least one set; the contents of other rows of the result are undefined.
        """
        count = self.shapes.rows(int(busy.nonzero()[0][-1]) + 1)
        width = self.shapes.width(int(positions[busy].max()) + 1)
        with torch.inference_mode():
            at = ids[:count, None], positions[:count, None]
            logits = self._forward.step(self.slots, *self._aim(self.slots, *at, width)).float()
            return self._all_rows(logits, len(ids))

    def _all_rows(self, logits: torch.Tensor, rows: int) -> torch.Tensor:
        """The logits padded to ``rows`` rows: sampling from them keeps one shape, and thus the same bits."""
        if len(logits) == rows:
            return logits
        self._logits[: len(logits)] = logits
        return self._logits[:rows]

    def _aim(
        self, rows: Rows, ids: np.ndarray, positions: np.ndarray, width: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Aim a pass; returns its ids, positions and attention mask."""
        at = torch.from_numpy(positions).to(self.device)
        rows.aim(at, width)
        seen = self._columns[:width] <= at[:, :, None]
        # Padding may extend past the context; it is masked, but its position must exist.
        return torch.from_numpy(ids).to(self.device), at.clamp(max=self._context - 1), seen

    def _exact(self, rows: Rows, tokens: int, narrow: Iterable[int]) -> Shapes:
        """The numbers of rows and the widths that give the same bits as all rows and the full width.

        Tested on random keys and tokens. For a step, the logits are compared; for prefill, the last layer's keys and
        values and the logits. If exactness is not guaranteed (GPUs, half precision), all shapes pass.
        """
        count, full = rows.kv.shape[1], rows.kv.shape[3]
        part = max(1, count // PARTS)
        fewer, narrow = list(range(part, count, part)), [width for width in narrow if width >= tokens]
        if self.device.type == "cuda":
            step = max(WIDTH_STEP, full // GPU_WIDTHS // WIDTH_STEP * WIDTH_STEP)
            counts = {count >> halving for halving in range(GPU_HALVINGS + 1)} - {0}
            return Shapes(sorted(counts), [*(width for width in range(step, full, step) if width >= tokens), full])
        if self.device.type != "cpu" or self._weight.dtype != torch.float32:
            return Shapes([*fewer, count], [*narrow, full])
        if torch.get_num_threads() > 1:
            # Threads divide an operation's elements by their number: with fewer rows, different elements are at the
            # boundaries, where a low-order bit may differ, in too few rows for this test to find.
            fewer = []
        draw = np.random.default_rng(0)
        ids = draw.integers(0, len(self._weight), (count, tokens))

        def outcome(first: np.ndarray, count: int, width: int) -> torch.Tensor:
            """[count, values to compare per row]"""
            positions = first[:count] + np.arange(tokens)
            aimed = self._aim(rows, ids[:count], positions, width)
            if rows is self.slots:
                return self._forward.step(rows, *aimed)
            logits = self._forward.read(rows, *aimed, torch.full((count,), tokens - 1, device=self.device))
            assert logits is not None
            return torch.cat((rows.written(), logits), -1)

        def expected(width: int) -> tuple[np.ndarray, torch.Tensor]:
            """First positions of blocks within the width, and the full pass's outcome for them."""
            # Half of the rows end in the width's last quarter, where a difference would show.
            first = draw.integers(0, width - tokens + 1, (count, 1))
            first[::2] = draw.integers((width - tokens) * 3 // 4, width - tokens + 1, first[::2].shape)
            return first, outcome(first, count, full)

        def same(some: int, width: int, first: np.ndarray, whole: torch.Tensor) -> bool:
            return torch.equal(whole[:some], outcome(first, some, width))

        with torch.inference_mode():
            rows.kv.normal_(generator=torch.Generator().manual_seed(0))
            widths = [*filter(lambda width: same(count, width, *expected(width)), narrow), full]
            for width in (full, widths[0]) if fewer else ():
                trial = expected(width)
                fewer = [some for some in fewer if same(some, width, *trial)]
            rows.kv.zero_()
        return Shapes([*fewer, count], widths)
