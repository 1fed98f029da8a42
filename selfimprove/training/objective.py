"""Weighted SFT, RISE's objective: minimise the batch mean of w_i * NLL_i (reward-weighted regression; docs/rise.md,
R26).

The batch is that of the optimiser step, however it is split into micro-batches, rows and processes. Each token gets its
final coefficient before the split, so that the sum of coefficient * token loss does not depend on it.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy

from selfimprove.core.sums import float_sum
from selfimprove.training.config import Normalization, Reduction
from selfimprove.training.encode import EncodedExample


def example_scales(batch: Sequence[EncodedExample], reduction: Reduction, normalization: Normalization) -> list[float]:
    """Factor for each example's token weights, such that the weighted sum of token losses is the batch's loss.

    With n_i trained tokens in example i of a batch of B, and token weights w:

    - ``example_mean`` (RISE): 1 / (B * n_i), the mean over examples of w_i times the mean token loss;
    - ``token_mean``: 1 / sum_i n_i, the mean over trained tokens of w times the token loss;
    - ``normalization="batch"`` divides by the batch's mean weight under the same reduction, so that weights determine
      the balance within the batch but not the step size.
    """
    trained = [example.trained for example in batch]
    if reduction == "example_mean":
        scales = [1.0 / (len(batch) * n) for n in trained]
    else:
        scales = [1.0 / sum(trained)] * len(batch)
    if normalization == "batch":
        mean = effective_weight(batch, scales)
        scales = [scale / mean for scale in scales]
    return scales


def effective_weight(batch: Sequence[EncodedExample], scales: Sequence[float]) -> float:
    """Sum of all token coefficients, the factor by which weights scale the step (1 for unweighted data)."""
    return float_sum(float_sum(example.token_weights) * scale for example, scale in zip(batch, scales, strict=True))


def trained_positions(coefficients: torch.Tensor) -> torch.Tensor:
    """[rows, width] booleans: positions whose next token has a nonzero coefficient and must be predicted."""
    return torch.nn.functional.pad(coefficients[:, 1:] != 0, (0, 1))


def weighted_nll(logits: torch.Tensor, ids: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Sum over tokens of coefficient * negative log-likelihood.

    Args:
        logits: [rows, width, vocabulary] of any float type (the loss is computed in float32), or [trained, vocabulary]
            at the ``trained_positions`` only, in row order.
        ids: [rows, width].
        coefficients: [rows, width]; that of ``ids[r, t]`` applies to its prediction by ``logits[r, t - 1]``. Column 0
            is never predicted and must be 0.

    Returns:
        A scalar; 0 (with a gradient path) if all coefficients are 0.
    """
    wanted = coefficients[:, 1:]
    mask = wanted != 0
    chosen = (logits[:, :-1][mask] if logits.dim() == 3 else logits).float()
    losses = cross_entropy(chosen, ids[:, 1:][mask], reduction="none")
    return (losses * wanted[mask]).sum()
