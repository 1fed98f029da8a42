"""The weighted loss, with and without normalisation, against the definition computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from selfimprove.training.encode import EncodedExample
from selfimprove.training.objective import effective_weight, example_scales, weighted_nll

RIGHT, WRONG = math.exp(1 / 0.4), math.exp(-1 / 0.4)


def example(context: int, learnt: int, weight: float) -> EncodedExample:
    return EncodedExample(list(range(context + learnt)), [0.0] * context + [weight] * learnt)


BATCH = [example(3, 2, RIGHT), example(1, 5, 1.0), example(2, 1, WRONG)]


def by_definition(nll: list[list[float]]) -> float:
    """Mean over the batch of w_i times the mean token NLL of example i."""
    total = 0.0
    for one, losses in zip(BATCH, nll, strict=True):
        learnt = [loss for loss, weight in zip(losses, one.token_weights, strict=True) if weight]
        total += one.weight * sum(learnt) / len(learnt)
    return total / len(BATCH)


def losses_by_hand() -> tuple[list[torch.Tensor], list[list[float]]]:
    torch.manual_seed(0)
    logits = [torch.randn(len(one.ids), 11) for one in BATCH]
    nll = []
    for one, rows in zip(BATCH, logits, strict=True):
        log_p = rows.log_softmax(-1)
        nll.append([0.0] + [-float(log_p[t - 1, one.ids[t]]) for t in range(1, len(one.ids))])
    return logits, nll


def total(scales: list[float], logits: list[torch.Tensor]) -> float:
    return sum(
        float(weighted_nll(rows[None], torch.tensor([one.ids]), torch.tensor([one.token_weights]) * scale))
        for one, rows, scale in zip(BATCH, logits, scales, strict=True)
    )


def test_the_loss_is_the_batch_mean_of_weight_times_mean_token_loss() -> None:
    logits, nll = losses_by_hand()
    assert total(example_scales(BATCH, "example_mean", "none"), logits) == pytest.approx(by_definition(nll), rel=1e-6)


def test_weights_are_those_of_the_paper_and_their_mean_is_reported() -> None:
    scales = example_scales(BATCH, "example_mean", "none")
    assert pytest.approx((12.1825, 0.0821), abs=1e-4) == (RIGHT, WRONG)
    assert effective_weight(BATCH, scales) == pytest.approx((RIGHT + 1 + WRONG) / 3)


def test_normalised_weights_keep_their_ratios_and_average_one() -> None:
    logits, nll = losses_by_hand()
    for reduction in ("example_mean", "token_mean"):
        plain = example_scales(BATCH, reduction, "none")
        normal = example_scales(BATCH, reduction, "batch")
        assert effective_weight(BATCH, normal) == pytest.approx(1.0)
        ratios = [a / b for a, b in zip(plain, normal, strict=True)]
        assert ratios == pytest.approx([ratios[0]] * 3)
    normal = example_scales(BATCH, "example_mean", "batch")
    assert total(normal, logits) == pytest.approx(by_definition(nll) * 3 / (RIGHT + 1 + WRONG), rel=1e-6)


def test_token_mean_is_the_mean_over_trained_tokens() -> None:
    logits, nll = losses_by_hand()
    weighted = sum(
        w * loss
        for one, losses in zip(BATCH, nll, strict=True)
        for w, loss in zip(one.token_weights, losses, strict=True)
    )
    assert total(example_scales(BATCH, "token_mean", "none"), logits) == pytest.approx(weighted / 8, rel=1e-6)


def test_a_micro_batch_without_weight_gives_zero_and_a_gradient_of_zeros() -> None:
    logits = torch.randn(2, 4, 7, requires_grad=True)
    loss = weighted_nll(logits, torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))  # type: ignore[arg-type]


def test_the_loss_of_logits_in_bfloat16_is_computed_in_float32() -> None:
    logits = torch.randn(1, 9, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, coefficients = torch.arange(9)[None], torch.full((1, 9), 1 / 8)
    coefficients[0, 0] = 0.0
    loss = weighted_nll(logits, ids, coefficients)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, weighted_nll(logits.float(), ids, coefficients))
