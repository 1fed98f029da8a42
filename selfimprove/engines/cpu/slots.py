"""Storage of keys and values: fixed rows that the model writes into, and a cache of prompt prefixes.

Both have the layout ``[2 x layers, rows, kv heads, width, head dim]`` (a layer's keys, then its values), so a prefix is
copied to a row in one operation. transformers' models access the rows through the library's own ``Cache`` interface
and need no changes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from selfimprove.core.errors import UserError
from selfimprove.core.memory import check_memory


class CacheShape(NamedTuple):
    """``dtype``: of keys and values, which may differ from the weights' (quantised, or with float32 embeddings)."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype


class _Layer(CacheLayerMixin):
    """One layer's view of the rows: ``update`` writes at each row's own positions and returns the first ``width``."""

    def __init__(self, rows: Rows, index: int) -> None:
        super().__init__()
        self._rows, self._index = rows, index
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, layer = self._rows, self._index
        keys, values = rows.kv[2 * layer], rows.kv[2 * layer + 1]
        dim = keys.shape[-1]
        keys.view(-1, dim).index_copy_(0, rows.places, key_states.reshape(-1, dim))
        values.view(-1, dim).index_copy_(0, rows.places, value_states.reshape(-1, dim))
        return keys[: rows.count, :, : rows.width], values[: rows.count, :, : rows.width]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """No-op: the rows exist from the start."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._rows.width, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return int(self._rows.kv.shape[3])


class Rows:
    """Keys and values of a fixed number of rows.

    Attributes:
        kv: [2 x layers, rows, kv heads, context, head dim].
        places: where the next forward pass writes: indices into a layer's keys viewed as [-1, head dim].
        count: number of rows, from the first on, in that pass.
        width: number of positions that it attends over.
        cache: the ``past_key_values`` argument for the model.
    """

    def __init__(self, shape: CacheShape, rows: int, context: int, device: torch.device) -> None:
        """Raises: UserError: the rows need more than the device's memory."""
        layers, heads, dim, dtype = shape
        gpu = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        size = 2 * layers * rows * heads * context * dim * dtype.itemsize
        check_memory(size, f"a KV cache of {rows} rows of {context} tokens (slots, prefill_rows, context)", total=gpu)
        self.kv = torch.zeros(2 * layers, rows, heads, context, dim, dtype=dtype, device=device)
        self._starts = (torch.arange(rows * heads, device=device) * context).view(rows, heads, 1)
        self.places = self._starts.flatten()
        self.count, self.width = rows, context
        self.cache = Cache(layers=[_Layer(self, index) for index in range(layers)])

    def aim(self, positions: torch.Tensor, width: int) -> None:
        """Set where the next forward pass writes ([its rows, tokens] int64) and how many positions it attends over."""
        self.count, self.width = len(positions), width
        self.places = (self._starts[: self.count] + positions[:, None, :]).flatten()

    def written(self) -> torch.Tensor:
        """The last layer's keys and values written by the last pass, [its rows, values per row]."""
        there = self.kv[-2:].flatten(1, 3)[:, self.places]
        return there.view(2, self.count, -1).transpose(0, 1).flatten(1)

    @torch.inference_mode()
    def put(self, row: int, blocks: Sequence[torch.Tensor]) -> None:
        """Copy blocks [2 x layers, kv heads, tokens, head dim] to a row, consecutively from position 0."""
        at = 0
        for block in blocks:
            end = at + block.shape[2]
            self.kv[:, row, :, at:end].copy_(block)
            at = end

    @torch.inference_mode()
    def move(self, row: int, to: int, end: int) -> None:
        """Copy a row's positions before ``end`` to another row."""
        self.kv[:, to, :, :end].copy_(self.kv[:, row, :, :end])

    @torch.inference_mode()
    def take(self, row: int, start: int, end: int) -> torch.Tensor:
        """A copy of a row's positions [start, end), in the form that ``put`` takes."""
        return self.kv[:, row, :, start:end].clone()


def cache_shape(model: Any) -> CacheShape:
    """The shape of a model's cache entries, found by running one token through it.

    Raises:
        UserError: layers differ in shape, or keys from values, or some are recurrent, or positions are biases of a mask
            (ALiBi); such models need another engine.
    """
    shapes: list[tuple[int, int, torch.dtype]] = []

    class Probe(_Layer):
        def __init__(self) -> None:
            CacheLayerMixin.__init__(self)
            self.is_initialized = True

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            shapes.extend((states.shape[1], states.shape[3], states.dtype) for states in (key_states, value_states))
            return key_states, value_states

    layers = model.config.get_text_config().num_hidden_layers
    device = model.get_input_embeddings().weight.device
    one = torch.zeros(1, 1, dtype=torch.int64, device=device)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    try:
        with torch.inference_mode():
            model(
                input_ids=one,
                attention_mask=mask,
                position_ids=one,
                past_key_values=Cache(layers=[Probe() for _ in range(layers)]),
                use_cache=True,
            )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(
            f"engine transformers: {type(model).__name__} does not work with this engine's KV cache and mask; use "
            "another engine (vllm) for this model."
        ) from error
    if len(shapes) != 2 * layers or len(set(shapes)) != 1:
        raise UserError(
            f"engine transformers: {type(model).__name__} does not have the same KV cache shape in every layer; use "
            "another engine (vllm) for this model."
        )
    heads, dim, dtype = shapes[0]
    return CacheShape(layers, heads, dim, dtype)


class PrefixCache:
    """Keys and values of whole prompt blocks, by the hash of all tokens up to the block's end; LRU eviction.

    Only blocks computed by the fixed-shape prefill are stored, so caching does not change a block's bits.
    """

    def __init__(self, block: int, most: int) -> None:
        self._block, self._most = block, most
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def names(self, ids: Sequence[int]) -> list[bytes]:
        """One key for each whole block of ``ids``; equal keys mean equal tokens from the start."""
        hashed = blake2b(digest_size=16)
        names = []
        for end in range(self._block, len(ids) + 1, self._block):
            hashed.update(array("q", ids[end - self._block : end]).tobytes())
            names.append(hashed.digest())
        return names

    def find(self, names: Sequence[bytes]) -> list[torch.Tensor]:
        """The cached blocks of the longest known prefix."""
        found = []
        for name in names:
            block = self._kept.get(name)
            if block is None:
                break
            self._kept.move_to_end(name)
            found.append(block)
        return found

    def keep(self, name: bytes, block: torch.Tensor) -> None:
        """Store a block; the least recently used ones are evicted."""
        self._kept[name] = block
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()
