"""Draws the next token of every slot in one operation, each from its own key, without random generators.

A row's uniform is output number ``step`` of the splitmix64 sequence that starts at the row's key, so it depends only on
the sample and the step. The token is the inverse of the distribution's cumulative sum at that uniform.
"""

from collections.abc import Sequence

import numpy as np
import torch

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniforms(keys: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) for each (key, step); both arrays are uint64 of the same shape."""
    with np.errstate(over="ignore"):
        state = keys + (steps + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
    # 52 bits: u * total then stays below total for any total near 1, so the inverse always exists.
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def choose(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor | None,
    allowed: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
    top_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability under the model (untempered, unfiltered).

    Each row's result depends on that row alone, bit for bit, as long as the number of rows stays the same.

    Args:
        logits: [rows, vocabulary], float32.
        uniform: [rows], float64 in [0, 1).
        temperature: [rows], float32; 0 is greedy.
        top_p: [rows], float32 in (0, 1], or None if every row has 1. The most probable tokens that together reach
            ``top_p`` are kept, including the one that crosses it.
        allowed: (rows, ids) pairs: these rows may only take one of ids.
        top_k: [rows], int64, or None if every row has 0. Only this many of the most probable tokens are kept (plus
            those tied with the last of them), before ``top_p`` is applied.

    Returns:
        ids [rows] int64, log-probabilities [rows] float32.
    """
    weights = logits
    if allowed:
        weights = logits.clone()
        for rows, ids in allowed:
            at = torch.as_tensor(rows, device=logits.device)
            kept = torch.as_tensor(ids, device=logits.device)
            weights[at] = -torch.inf
            weights[at[:, None], kept] = logits[at[:, None], kept]
    greedy = temperature == 0
    chosen = weights.argmax(-1)
    if not bool(greedy.all()):
        scale = torch.where(greedy, 1.0, temperature)[:, None]
        if top_k is not None:
            weights = _most_probable(weights, top_k)
        probability = torch.softmax(weights / scale, -1)
        if top_p is not None:
            narrow = (top_p < 1).nonzero()[:, 0]
            probability[narrow] = _nucleus(probability[narrow], top_p[narrow])
        total = probability.cumsum(-1, dtype=torch.float64)
        drawn = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)[:, 0]
        chosen = torch.where(greedy, chosen, drawn)
    logprob = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen, logprob


def _nucleus(probability: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    ordered, order = probability.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    return torch.zeros_like(probability).scatter_(1, order, ordered.masked_fill(before >= top_p[:, None], 0.0))


def _most_probable(weights: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    size = weights.shape[-1]
    kept = torch.where(top_k == 0, size, top_k).clamp(max=size)
    ordered = weights.sort(dim=-1, descending=True).values
    least = ordered.gather(1, kept[:, None] - 1)
    return weights.masked_fill(weights < least, -torch.inf)


def possible(
    logits: torch.Tensor, scale: torch.Tensor, top_p: torch.Tensor | None, top_k: torch.Tensor | None
) -> torch.Tensor:
    """The logits [rows, tokens] of the tokens that ``choose`` could draw with these filters; minus infinity elsewhere.

    ``scale``: [rows, 1], the temperature.
    """
    if top_k is not None:
        logits = _most_probable(logits, top_k)
    if top_p is not None:
        kept = _nucleus(torch.softmax(logits / scale, -1), top_p) > 0
        logits = logits.masked_fill(~kept & (top_p < 1)[:, None], -torch.inf)
    return logits


def possible_by_id(
    logits: torch.Tensor,
    ids: Sequence[int] | None,
    scale: torch.Tensor,
    top_p: torch.Tensor | None,
    top_k: torch.Tensor | None,
) -> torch.Tensor:
    """``possible`` for logits whose columns are ``ids``: ties are broken by the lowest id, as in ``choose``."""
    if ids is None:
        return possible(logits, scale, top_p, top_k)
    order = torch.as_tensor(ids, device=logits.device).argsort()
    return possible(logits[:, order], scale, top_p, top_k)[:, order.argsort()]


def score_choices(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    drawn: torch.Tensor,
    ids: Sequence[int] | None,
    top_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of the drawn token, and entropy (nats), among the possible tokens, at that temperature.

    Both are float64 [rows]; a row's values do not depend on the other rows.

    Args:
        logits: [rows, vocabulary].
        temperature: [rows]; 0 counts as 1.
        drawn: [rows] int64, among ``ids``.
        ids: the ids that could be drawn; None is the whole vocabulary.
        top_p, top_k: as in ``choose``.
    """
    scale = torch.where(temperature == 0, 1.0, temperature)[:, None]
    if ids is not None:
        kept = torch.as_tensor(ids, device=logits.device)
        logits, drawn = logits[:, kept], (drawn[:, None] == kept).int().argmax(-1)
    left = possible_by_id(logits, ids, scale, top_p, top_k)
    left = left.scatter(1, drawn[:, None], logits.gather(1, drawn[:, None]))  # never filtered out by rounding
    logs = torch.log_softmax(left.double() / scale, -1)
    entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)
    return logs.gather(1, drawn[:, None])[:, 0], entropy
