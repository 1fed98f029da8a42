"""Input tensors of packed rows: conversations that share a row without attending to each other."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import MicroBatch

END_TO_END = ("flash_attention_2", "segments")
"""Attention implementations that process all rows as one, without padding."""

FLASH_INPUTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Boundaries of examples, named as in transformers' ``FlashAttentionKwargs``."""

MODEL_INPUTS = ("input_ids", "position_ids", "attention_mask", "segments", *FLASH_INPUTS)
"""Entries of a rendered micro-batch that are passed to the model, if present."""


def render(
    micro: MicroBatch,
    examples: Sequence[EncodedExample],
    scales: dict[int, float],
    pad_id: int,
    attention: str = "sdpa",
) -> dict[str, Any]:
    """Tensors of one micro-batch.

    Returns ``input_ids``, ``position_ids`` (restarting at 0 in each example) and ``coefficients`` (token weight times
    the example's scale), each [rows, width]. For ``sdpa`` and ``eager`` there is also an ``attention_mask`` [rows, 1,
    width, width], under which a token attends only to its own example up to itself (padding attends to itself). The
    mask is omitted if every row holds one example: causal attention, which is then faster, never attends to padding.
    For FlashAttention and ``segments`` all rows are laid end to end without padding, and ``FLASH_INPUTS`` contain the
    boundaries of examples; transformers would otherwise derive them from the positions in every layer, synchronising
    with the GPU each time. For ``segments``, the examples' lengths are returned as well.
    """
    rows = [tuple(index for row in micro for index in row)] if attention in END_TO_END else list(micro)
    width = max((sum(len(examples[i].ids) for i in row) for row in rows), default=0) or 1
    shape = (max(1, len(rows)), width)
    ids = torch.full(shape, pad_id, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    coefficients = torch.zeros(shape, dtype=torch.float32)
    # Each padding token is a segment of its own, so that no attention row is empty (softmax of nothing is NaN).
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
        lengths = [len(examples[i].ids) for i in rows[0]] or [width]  # without examples: one padding token
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        tensors |= zip(FLASH_INPUTS, (bounds, bounds, max(lengths), max(lengths)), strict=True)
        if attention == "segments":
            tensors["segments"] = lengths
        return tensors
    if all(len(row) <= 1 for row in rows):
        tensors["position_ids"] = torch.arange(width).repeat(shape[0], 1)
    else:
        same = segments[:, :, None] == segments[:, None, :]
        mask = (same & torch.ones(width, width, dtype=torch.bool).tril())[:, None]
        if attention == "eager":  # which adds the mask to the scores
            mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        tensors["attention_mask"] = mask
    return tensors
