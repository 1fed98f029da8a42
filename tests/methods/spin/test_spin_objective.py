"""SPIN's loss matches its formula at any precision of the logits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.methods.spin.objective import (
    FIRST_LOSS,
    gap,
    implicit_rewards,
    over_sequences,
    pair_losses,
    token_log_probs,
)

NATS = st.floats(-300, 0)


@given(NATS, NATS, NATS, NATS, st.sampled_from([0.1, 1.0, 5.0]))
def test_sigmoid_and_hinge_losses_match_their_formulas(
    real: float, generated: float, opponent_real: float, opponent_generated: float, beta: float
) -> None:
    scores = torch.tensor([[real, generated]], dtype=torch.float64)
    against = torch.tensor([[opponent_real, opponent_generated]], dtype=torch.float64)
    h = (real - opponent_real) - (generated - opponent_generated)
    assert gap(scores, against).item() == pytest.approx(h, abs=1e-9)
    logistic = math.log1p(math.exp(-beta * h)) if -beta * h < 30 else -beta * h
    assert pair_losses(gap(scores, against), beta, "sigmoid").item() == pytest.approx(logistic, abs=1e-6)
    assert pair_losses(gap(scores, against), beta, "hinge").item() == pytest.approx(max(0.0, 1 - beta * h), abs=1e-6)


def test_reference_free_drops_the_opponent_from_h_but_not_from_the_rewards() -> None:
    scores, against = torch.tensor([[-3.0, -5.0]]), torch.tensor([[-1.0, -9.0]])
    assert gap(scores, against).item() == -6.0
    assert gap(scores, against, reference_free=True).item() == 2.0
    assert implicit_rewards(scores, against, 0.5).tolist() == [[-1.0, 2.0]]


def test_a_model_scored_against_itself_has_the_expected_first_loss() -> None:
    scores = torch.tensor([[-3.0, -5.0], [-100.0, -2.0]])
    for loss, first in FIRST_LOSS.items():
        assert pair_losses(gap(scores, scores), 5.0, loss).tolist() == pytest.approx([first, first])  # type: ignore[arg-type]
    assert (FIRST_LOSS["sigmoid"], FIRST_LOSS["hinge"]) == (math.log(2), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_sums_of_log_softmax_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    tokens = torch.arange(9) * 5
    values = token_log_probs(logits, tokens)
    assert values.dtype == torch.float32
    expected = logits.double().log_softmax(-1)[torch.arange(9), tokens]
    assert torch.allclose(values.double(), expected, atol=1e-5)
    sums = over_sequences(values, torch.tensor([4, 0, 5]))
    assert sums.tolist() == pytest.approx([float(expected[:4].sum()), 0.0, float(expected[4:].sum())], rel=1e-5)
