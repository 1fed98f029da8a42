"""FlashAttention's functions in plain torch for CPUs: the kernel that the package ``kernels`` loads in tests.

Arguments and results match flash-attn 2 (``flash_attn.flash_attn_varlen_func``) as far as transformers uses them. The
environment variable ``KERNEL_FACTOR`` makes the kernel compute wrong values.
"""

import os
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attention within each sequence; ``q`` has shape [tokens, heads, width], delimited by ``cu_seqlens_q``."""
    ends = cu_seqlens_q.tolist()
    assert cu_seqlens_k.tolist() == ends
    assert max_seqlen_q == max_seqlen_k == max(end - start for start, end in pairwise(ends))
    parts = []
    for start, end in pairwise(ends):
        one_q, one_k, one_v = (states[start:end].transpose(0, 1)[None] for states in (q, k, v))
        mixed = scaled_dot_product_attention(
            one_q, one_k, one_v, is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        parts.append(mixed[0].transpose(0, 1))
    return torch.cat(parts) * float(os.environ.get("KERNEL_FACTOR", "1"))


def flash_attn_func(*_: object, **__: object) -> torch.Tensor:
    """For rows with one sequence each, which training does not use."""
    raise AssertionError("rows are packed: lengths say where sequences end")


def flash_attn_with_kvcache(*_: object, **__: object) -> torch.Tensor:
    """For generation, which training does not use."""
    raise AssertionError("training keeps no cache")
