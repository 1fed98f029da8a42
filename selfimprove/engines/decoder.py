"""One model behind two calls of fixed shape: read a block of some prompts, and decode one token of every slot.

On CPU in float32 a row's result is then a pure function of that row's own tokens, to the last bit: matrix products of
one shape treat every row alike, and masked positions add exact zeros. Attending over fewer masked positions is faster,
and some narrower widths give the very bits of the full one; which, depends on the kernels at hand, so it is found out
when the decoder is made (``_exact``), and no other width is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from selfimprove.engines.attention import use_one_query_attention
from selfimprove.engines.slots import Rows, cache_shape

WIDTH_STEP = 32
"""Attention widths are multiples of this (or of a sixteenth of the context, if that is more)."""


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
        use_one_query_attention(model)
        self._model, self._block, self._context = model, prefill_block, context
        self._weight = model.get_input_embeddings().weight
        shape = cache_shape(model)
        whole = -(-context // prefill_block) * prefill_block
        with torch.inference_mode():
            self.slots = Rows(shape, slots, context, self._weight)
            self.reading = Rows(shape, prefill_rows, whole, self._weight)
            self._columns = torch.arange(whole, device=self._weight.device)
        self._pad = np.full((prefill_rows, prefill_block), pad_id, dtype=np.int64)
        self._offsets = np.arange(prefill_block, dtype=np.int64)
        step = max(WIDTH_STEP, context // 16 // WIDTH_STEP * WIDTH_STEP)
        narrow = range(step, context, step)
        self.widths = [*self._exact(model, self.slots, 1, narrow), context]
        self.reading_widths = [*self._exact(model.base_model, self.reading, prefill_block, narrow), whole]

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return torch.device(self._weight.device)

    def read(self, work: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Compute keys and values of one block for some reading rows.

        Args:
            work: (row, first position, at most ``prefill_block`` ids) each; the positions before the first must
                have been read or put there.
        """
        ids, starts = self._pad.copy(), np.zeros(len(self._pad), dtype=np.int64)
        for row, start, tokens in work:
            ids[row, : len(tokens)] = tokens
            starts[row] = start
        positions = starts[:, None] + self._offsets
        needed = int(starts.max()) + self._block
        width = next(w for w in self.reading_widths if w >= needed)
        self._forward(self._model.base_model, self.reading, ids, positions, width)

    def step(self, ids: np.ndarray, positions: np.ndarray, longest: int) -> torch.Tensor:
        """Next-token logits [slots, vocabulary] (float32) after feeding every slot one token.

        Args:
            ids, positions: [slots] int64, the token and the position it stands at; idle slots hold any valid pair.
            longest: the largest position whose result matters.
        """
        width = next(w for w in self.widths if w > longest)
        out = self._forward(self._model, self.slots, ids[:, None], positions[:, None], width)
        return out.logits[:, 0].float()

    def _forward(self, module: Any, rows: Rows, ids: np.ndarray, positions: np.ndarray, width: int) -> Any:
        with torch.inference_mode():
            at = torch.from_numpy(positions).to(self.device)
            rows.aim(at, width)
            seen = self._columns[:width] <= at[:, None, :, None]
            mask = torch.zeros(seen.shape, dtype=self._weight.dtype, device=self.device)
            return module(
                input_ids=torch.from_numpy(ids).to(self.device),
                attention_mask=mask.masked_fill_(~seen, -torch.inf),
                # Filling may lie past the context; it is masked, but its position must exist.
                position_ids=at.clamp(max=self._context - 1),
                past_key_values=rows.cache,
                use_cache=True,
            )

    def _exact(self, module: Any, rows: Rows, tokens: int, widths: Iterable[int]) -> list[int]:
        """Those of ``widths`` that give the same bits as the full width, on random keys and tokens.

        All of them where exactness isn't promised (GPUs, half precision).
        """
        widths = [width for width in widths if width >= tokens]
        if self.device.type != "cpu" or self._weight.dtype != torch.float32:
            return widths
        draw = np.random.default_rng(0)
        count, full = rows.kv.shape[1], rows.kv.shape[3]
        ids = draw.integers(0, len(self._weight), (count, tokens))
        with torch.inference_mode():
            rows.kv.normal_(generator=torch.Generator().manual_seed(0))
        exact = []
        for width in widths:
            # Half of the rows end within the width's last quarter, where a difference would show.
            first = draw.integers(0, width - tokens + 1, (count, 1))
            first[::2] = draw.integers((width - tokens) * 3 // 4, width - tokens + 1, first[::2].shape)
            positions = first + np.arange(tokens)
            wide, narrow = (self._forward(module, rows, ids, positions, w)[0] for w in (full, width))
            if torch.equal(wide, narrow):
                exact.append(width)
        with torch.inference_mode():
            rows.kv.zero_()
        return exact
