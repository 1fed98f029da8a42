"""Attention ``segments``: each conversation of a micro-batch is attended separately, without a mask or padding.

Conversations are laid end to end in one row. With a mask, attention over a packed row computes all pairs of tokens and
discards those across conversations and in the future. Here causal attention is computed for each conversation. On a CPU
this doubles training throughput on conversations of a few hundred tokens. On a GPU (Ampere or newer) in half precision,
torch's own FlashAttention computes all conversations at once; on other GPUs and in float32 they are computed one after
another, as on a CPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from selfimprove.core.errors import UserError

NAME = "segments"
AMPERE = (8, 0)
"""The oldest GPUs, by compute capability, for which torch contains FlashAttention."""
WIDEST = 256
"""The widest heads that it supports."""


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
    cu_seq_lens_q: torch.Tensor | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of ``segments`` (lengths that add up to the row's), in transformers' interface.

    ``query`` [1, heads, row, width]; ``key`` and ``value`` may have fewer heads; ``cu_seq_lens_q`` [segments + 1]
    int32, the boundaries of the segments, is needed only on GPUs. ``s_aux``: attention sinks. Returns [1, row, heads,
    width].

    Raises:
        UserError: the architecture does not pass on ``segments``, or needs another kind of attention.
    """
    capped = softcap is not None or s_aux is not None  # sdpa would ignore both
    narrow = segments is not None and sliding_window is not None and sliding_window < max(segments)
    if segments is None or capped or narrow:
        other = "eager" if capped else "flash_attention_2" if narrow else "sdpa"
        raise UserError(
            f"train.attention: {NAME} does not support the attention of {type(module).__name__}; set {other}."
        )
    grouped = query.shape[1] != key.shape[1]
    if query.is_cuda and cu_seq_lens_q is not None and dropout == 0.0:
        # Autocast covers sdpa, but not this function; rotary embeddings leave queries and keys in float32.
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
        if _fused(query, value, dtype):
            q, k, v = (part[0].transpose(0, 1).to(dtype) for part in (query, key, value))
            longest = max(segments)
            mixed = varlen_attn(
                q, k, v, cu_seq_lens_q, cu_seq_lens_q, longest, longest, scale=scaling, window_size=(-1, 0),
                enable_gqa=grouped,
            )  # fmt: skip
            return mixed.unsqueeze(0), None  # type: ignore[union-attr]
    apart = [part.split(list(segments), dim=2) for part in (query, key, value)]
    parts = [
        scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped)
        for q, k, v in zip(*apart, strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _fused(query: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether torch's FlashAttention supports this precision, these widths of heads, and this GPU."""
    width = query.shape[-1]
    supported = width % 8 == 0 and width <= WIDEST and width == value.shape[-1]
    half = dtype in (torch.bfloat16, torch.float16)
    return half and supported and torch.cuda.get_device_capability(query.device) >= AMPERE


AttentionInterface.register(NAME, attend)
