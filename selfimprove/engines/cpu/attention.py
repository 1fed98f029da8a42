"""Attention for decoding: one query per row, as two batched matrix products.

The fused kernel works in blocks of queries and is slow for a single one; attention in a step is about twice as fast
here on a CPU. On a GPU, the library would first copy the keys and values once for each query head that shares them.
Prefill, which has many queries, uses the fused kernel.
"""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "sdpa_or_one_query"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [rows, heads, tokens, dim], key and value [rows, kv heads, width, dim],
    additive mask [rows, 1, tokens, width]; returns [rows, tokens, heads, dim]."""
    rows, heads, tokens, dim = query.shape
    if tokens != 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    kv_heads, width = key.shape[1], key.shape[2]
    group = heads // kv_heads
    # Views, not copies: the rows' memory is laid out [rows, kv heads, context, dim].
    keys, values = key.flatten(0, 1), value.flatten(0, 1)
    queries = query.reshape(rows * kv_heads, group, dim) * (dim**-0.5 if scaling is None else scaling)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(rows, heads, 1, width) + attention_mask
    shares = torch.softmax(scores, dim=-1).view(rows * kv_heads, group, width)
    return torch.bmm(shares, values).view(rows, 1, heads, dim), None


def use_one_query_attention(model: Any) -> None:
    """Make a model that uses the fused kernel use ``attend`` instead."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend)
        model.set_attn_implementation(NAME)
