"""The tensors of packed rows: conversations side by side that do not see each other."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import MicroBatch

END_TO_END = ("flash_attention_2", "segments")
"""Attentions that take all rows as one, without padding."""

FLASH_INPUTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Where examples begin and end, by the names of transformers' ``FlashAttentionKwargs``."""

MODEL_INPUTS = ("input_ids", "position_ids", "attention_mask", "segments", *FLASH_INPUTS)
"""What of a rendered micro-batch the model reads, as far as it is there."""


def render(
    micro: MicroBatch,
    examples: Sequence[EncodedExample],
    scales: dict[int, float],
    pad_id: int,
    attention: str = "sdpa",
) -> dict[str, Any]:
    """Tensors of one micro-batch.

    Returns ``input_ids``, ``position_ids`` (restarting at 0 in each example) and ``coefficients`` (token weight times
    the example's scale), each [rows, width]; and for ``sdpa`` and ``eager`` an ``attention_mask`` [rows, 1, width,
    width] that lets a token see only its own example up to itself (padding sees itself). There is no mask where every
    row holds one example: causal attention, which is then faster, never looks at the padding behind it.
    For FlashAttention all rows are laid end to end, without padding, and ``FLASH_INPUTS`` say where examples begin and
    end: left to itself, transformers finds that out from the positions in every layer, and waits for the GPU each time.
    ``segments`` is given the examples' lengths.
    """
    rows = [tuple(index for row in micro for index in row)] if attention in END_TO_END else list(micro)
    width = max((sum(len(examples[i].ids) for i in row) for row in rows), default=0) or 1
    shape = (max(1, len(rows)), width)
    ids = torch.full(shape, pad_id, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    coefficients = torch.zeros(shape, dtype=torch.float32)
    # Padding gets segments of its own, one a token, so that no attention row is empty (softmax of nothing is NaN).
    segments = -1 - torch.arange(width).repeat(shape[0], 1)
    for r, row in enumerate(rows):
        start = 0
        for number, index in enumerate(row):
            example = examples[index]
            end = start + len(example.ids)
            ids[r, start:end] = torch.tensor(example.ids)
            positions[r, start:end] = torch.arange(end - start)
            weights = torch.tensor(example.token_weights, dtype=torch.float64)
            coefficients[r, start:end] = (weights * scales[index]).float()
            segments[r, start:end] = number
            start = end
    tensors: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "coefficients": coefficients}
    if attention in END_TO_END:
        lengths = [len(examples[i].ids) for i in rows[0]] or [width]  # no example: a single token of padding
        if attention == "segments":
            tensors["segments"] = lengths
        else:
            bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            tensors |= zip(FLASH_INPUTS, (bounds, bounds, max(lengths), max(lengths)), strict=True)
        return tensors
    if all(len(row) <= 1 for row in rows):
        tensors["position_ids"] = torch.arange(width).repeat(shape[0], 1)
    else:
        same = segments[:, :, None] == segments[:, None, :]
        mask = (same & torch.ones(width, width, dtype=torch.bool).tril())[:, None]
        if attention == "eager":  # adds its mask to the scores
            mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        tensors["attention_mask"] = mask
    return tensors
