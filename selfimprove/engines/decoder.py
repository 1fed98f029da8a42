"""One model behind two calls of fixed shape: read a block of some prompts, and decode one token of every slot.

On CPU in float32 a row's result is then a pure function of that row's own tokens, to the last bit: matrix products of
one shape treat every row alike, and masked positions add exact zeros. Attending over fewer masked positions is faster,
and some narrower widths give the very bits of the full one; which, depends on the kernels at hand, so it is found out
when the decoder is made (``_exact``), and no other width is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from selfimprove.engines.attention import use_one_query_attention
from selfimprove.engines.llama import Llama
from selfimprove.engines.slots import Rows, cache_shape

WIDTH_STEP = 32
"""Attention widths are multiples of this (or of a sixteenth of the context, if that is more)."""


class Forward(Protocol):
    """Two ways through a model. Both write keys and values where ``rows`` aims.

    ids and at (the positions) are [rows, tokens] int64, seen is [rows, tokens, width] bool: what each may attend to.
    """

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Prompts, for their keys and values; with ``last`` [rows], also the logits [rows, vocabulary] behind it."""
        ...

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """One token a row; returns the next one's logits [rows, vocabulary]."""
        ...


class Module:
    """The library's way, for any causal language model."""

    def __init__(self, model: Any) -> None:
        use_one_query_attention(model)
        self._model = model

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """See ``Forward.read``."""
        if last is None:
            self._through(self._model.base_model, rows, ids, at, seen)
            return None
        logits: torch.Tensor = self._through(self._model, rows, ids, at, seen).logits
        return logits[torch.arange(len(last), device=last.device), last]

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """See ``Forward.step``."""
        out: torch.Tensor = self._through(self._model, rows, ids, at, seen).logits[:, 0]
        return out

    def _through(self, module: Any, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> Any:
        mask = torch.zeros(seen.shape, dtype=rows.kv.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
        return module(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=at,
            past_key_values=rows.cache,
            use_cache=True,
        )


class Decoder:
    """A causal language model with ``slots`` decoding rows and ``prefill_rows`` reading rows.

    Attributes:
        slots: keys and values of the decoding rows, [context] positions each.
        reading: those of the reading rows, which prompts pass through on their way into the slots.
        widths, reading_widths: the attention widths in use, ascending; the last is the full one.
    """

    def __init__(
        self, model: Any, *, slots: int, context: int, prefill_rows: int, prefill_block: int, pad_id: int
    ) -> None:
        self._block, self._context = prefill_block, context
        self._weight = model.get_input_embeddings().weight
        shape = cache_shape(model)
        whole = -(-context // prefill_block) * prefill_block
        with torch.inference_mode():
            self.slots = Rows(shape, slots, context, self._weight)
            self.reading = Rows(shape, prefill_rows, whole, self._weight)
            self._columns = torch.arange(whole, device=self._weight.device)
        self._forward: Forward = Llama.of(model, context) or Module(model)
        self._pad = np.full((prefill_rows, prefill_block), pad_id, dtype=np.int64)
        self._offsets = np.arange(prefill_block, dtype=np.int64)
        step = max(WIDTH_STEP, context // 16 // WIDTH_STEP * WIDTH_STEP)
        narrow = range(step, context, step)
        self.widths = [*self._exact(self.slots, 1, narrow), context]
        self.reading_widths = [*self._exact(self.reading, prefill_block, narrow), whole]

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return torch.device(self._weight.device)

    def read(
        self, work: Sequence[tuple[int, int, Sequence[int]]], ends: Mapping[int, int] | None = None
    ) -> torch.Tensor | None:
        """Compute keys and values of one block for some reading rows.

        Args:
            work: (row, first position, at most ``prefill_block`` ids) each; the positions before the first must
                have been read or put there.
            ends: by row, the place in the block at which its prompt ends.

        Returns:
            With ``ends``, next-token logits [prefill rows, vocabulary] (float32) there; what other rows hold means
            nothing.
        """
        ids, starts = self._pad.copy(), np.zeros(len(self._pad), dtype=np.int64)
        for row, start, tokens in work:
            ids[row, : len(tokens)] = tokens
            starts[row] = start
        positions = starts[:, None] + self._offsets
        needed = int(starts.max()) + self._block
        width = next(w for w in self.reading_widths if w >= needed)
        last = None
        if ends:
            last = torch.zeros(len(self._pad), dtype=torch.int64, device=self.device)
            last[list(ends)] = torch.tensor(list(ends.values()), device=self.device)
        with torch.inference_mode():
            logits = self._forward.read(self.reading, *self._aim(self.reading, ids, positions, width), last)
        return None if logits is None else logits.float()

    def step(self, ids: np.ndarray, positions: np.ndarray, longest: int) -> torch.Tensor:
        """Next-token logits [slots, vocabulary] (float32) after feeding every slot one token.

        Args:
            ids, positions: [slots] int64, the token and the position it stands at; idle slots hold any valid pair.
            longest: the largest position whose result matters.
        """
        width = next(w for w in self.widths if w > longest)
        with torch.inference_mode():
            at = ids[:, None], positions[:, None]
            return self._forward.step(self.slots, *self._aim(self.slots, *at, width)).float()

    def _aim(
        self, rows: Rows, ids: np.ndarray, positions: np.ndarray, width: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Aim a pass; returns its ids, positions and what may be attended to."""
        at = torch.from_numpy(positions).to(self.device)
        rows.aim(at, width)
        seen = self._columns[:width] <= at[:, :, None]
        # Filling may lie past the context; it is masked, but its position must exist.
        return torch.from_numpy(ids).to(self.device), at.clamp(max=self._context - 1), seen

    def _exact(self, rows: Rows, tokens: int, widths: Iterable[int]) -> list[int]:
        """Those of ``widths`` that give the same bits as the full width, on random keys and tokens.

        What counts is a step's logits, and the last layer's keys and values and the logits that reading gives. All
        widths pass where exactness isn't promised (GPUs, half precision).
        """
        widths = [width for width in widths if width >= tokens]
        if self.device.type != "cpu" or self._weight.dtype != torch.float32:
            return widths
        draw = np.random.default_rng(0)
        count, full = rows.kv.shape[1], rows.kv.shape[3]
        ids = draw.integers(0, len(self._weight), (count, tokens))

        def outcome(positions: np.ndarray, width: int) -> torch.Tensor:
            aimed = self._aim(rows, ids, positions, width)
            if rows is self.slots:
                return self._forward.step(rows, *aimed)
            last = torch.full((count,), tokens - 1, device=self.device)
            logits = self._forward.read(rows, *aimed, last)
            assert logits is not None
            return torch.cat((rows.written().flatten(), logits.flatten()))

        exact = []
        with torch.inference_mode():
            rows.kv.normal_(generator=torch.Generator().manual_seed(0))
            for width in widths:
                # Half of the rows end within the width's last quarter, where a difference would show.
                first = draw.integers(0, width - tokens + 1, (count, 1))
                first[::2] = draw.integers((width - tokens) * 3 // 4, width - tokens + 1, first[::2].shape)
                positions = first + np.arange(tokens)
                if torch.equal(outcome(positions, full), outcome(positions, width)):
                    exact.append(width)
            rows.kv.zero_()
        return exact
