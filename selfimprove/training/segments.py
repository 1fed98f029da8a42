"""Attention ``segments``: each conversation of a micro-batch is attended separately, without a mask or padding.

Conversations are laid end to end in one row, as for FlashAttention, which requires a GPU. With a mask, attention over a
packed row computes all pairs of tokens and discards those across conversations and in the future. Here causal attention
is computed for each conversation. On a CPU this doubles training throughput on conversations of a few hundred tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from selfimprove.core.errors import UserError

NAME = "segments"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    segments: Sequence[int] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of ``segments`` (lengths that add up to the row's), in transformers' interface.

    ``query`` [1, heads, row, width]; ``key`` and ``value`` may have fewer heads. Returns [1, row, heads, width].

    Raises:
        UserError: the architecture does not pass on ``segments``, or needs another kind of attention.
    """
    if segments is None or softcap is not None or (sliding_window is not None and sliding_window < max(segments)):
        raise UserError(f"train.attention: {NAME} does not support the attention of {type(module).__name__}; set sdpa.")
    apart = [part.split(list(segments), dim=2) for part in (query, key, value)]
    grouped = query.shape[1] != key.shape[1]
    parts = [
        scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped)
        for q, k, v in zip(*apart, strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
