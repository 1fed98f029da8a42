"""Micro-batches of the plan as tensors: packed rows, their attention mask and restarting positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from selfimprove.training.encode import EncodedExample
from selfimprove.training.objective import Normalization, Reduction, token_coefficients
from selfimprove.training.packing import MicroBatch, Plan

MaskKind = Literal["block", "none"]


class PlannedBatches(Dataset[dict[str, Tensor]]):
    """One process's micro-batches in the plan's order; item ``step * accumulation + k`` is the k-th of a step.

    ``masks``: "block" for attention that needs a mask (sdpa, eager); "none" where the positions alone say where a
    conversation begins (FlashAttention's variable-length kernels): all conversations of a micro-batch then share a row.
    """

    def __init__(
        self,
        examples: Sequence[EncodedExample],
        plan: Plan,
        *,
        rank: int,
        pad_id: int,
        masks: MaskKind,
        reduction: Reduction,
        normalization: Normalization,
    ) -> None:
        self._examples, self._plan, self._rank = examples, plan, rank
        self._pad_id, self._masks = pad_id, masks
        self._reduction, self._normalization = reduction, normalization
        self._step, self._coefficients = -1, dict[int, list[float]]()

    def __len__(self) -> int:
        return len(self._plan.steps) * self._plan.accumulation

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        number, part = divmod(item, self._plan.accumulation)
        step = self._plan.steps[number]
        if number != self._step:
            indices = step.examples
            batch = [self._examples[index] for index in indices]
            values = token_coefficients(batch, self._reduction, self._normalization)
            self._step, self._coefficients = number, dict(zip(indices, values, strict=True))
        rows = step.micro[self._rank][part]
        return collate(self._examples, rows, self._coefficients, pad_id=self._pad_id, masks=self._masks)


def collate(
    examples: Sequence[EncodedExample],
    rows: MicroBatch,
    coefficients: dict[int, list[float]],
    *,
    pad_id: int,
    masks: MaskKind,
) -> dict[str, Tensor]:
    """Tensors of one micro-batch.

    Returns:
        ``input_ids`` and ``position_ids`` [rows, width] (positions restart at every conversation);
        ``attention_mask`` [rows, 1, width, width], true where a token may look: itself and what precedes it in its own
        conversation. Left out where causal attention alone says the same (one conversation a row) and for "none";
        ``where`` [tokens]: flat index rows*width of the token *before* each trained one, whose output predicts it;
        ``targets`` [tokens]: the trained ids; ``coefficients`` [tokens]: see ``objective``.
        An empty micro-batch (a process with nothing to do) is one pad token without loss.
    """
    if masks == "none":
        rows = [[index for row in rows for index in row]]
    width = max((sum(len(examples[index]) for index in row) for row in rows), default=0) or 1
    height = max(len(rows), 1)
    ids = torch.full((height, width), pad_id, dtype=torch.long)
    positions = torch.zeros((height, width), dtype=torch.long)
    # Pad cells belong to conversation 0 and see each other only: a row without any visible key would be NaN.
    owner = torch.zeros((height, width), dtype=torch.long)
    where: list[int] = []
    targets: list[int] = []
    shares: list[float] = []
    for number, row in enumerate(rows):
        start = 0
        for place, index in enumerate(row, start=1):
            example = examples[index]
            stop = start + len(example)
            ids[number, start:stop] = torch.tensor(example.ids)
            positions[number, start:stop] = torch.arange(len(example))
            owner[number, start:stop] = place
            for offset, share in enumerate(coefficients[index]):
                if share:
                    where.append(number * width + start + offset - 1)
                    targets.append(example.ids[offset])
                    shares.append(share)
            start = stop
    batch = {
        "input_ids": ids,
        "position_ids": positions,
        "where": torch.tensor(where, dtype=torch.long),
        "targets": torch.tensor(targets, dtype=torch.long),
        "coefficients": torch.tensor(shares, dtype=torch.float32),
    }
    if masks == "block":
        if all(len(row) <= 1 for row in rows):
            batch["position_ids"] = torch.arange(width).expand(height, width).contiguous()
        else:
            same = owner[:, :, None] == owner[:, None, :]
            batch["attention_mask"] = (same & torch.ones(width, width, dtype=torch.bool).tril())[:, None]
    return batch
