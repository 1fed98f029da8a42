"""Costs to go, policy gradient, PPO and replay, checked against their formulas (docs/reflect-rl.md, L16 to L20)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_objective import (
    RLTrajectory,
    clipped_surrogate,
    costs_to_go,
    policy_gradient,
)
from selfimprove.methods.reflect_rl.rl_replay import Replay

numbers = st.floats(-5, 5)


@given(st.lists(st.tuples(numbers, st.floats(0, 3)), max_size=20), st.floats(0, 1))
def test_costs_to_go_sum_the_remaining_costs_minus_the_entropy_bonus(
    steps: list[tuple[float, float]], beta: float
) -> None:
    costs, entropies = [cost for cost, _ in steps], [entropy for _, entropy in steps]
    q = costs_to_go(costs, entropies, beta)
    for t in range(len(steps)):
        assert q[t] == pytest.approx(sum(c - beta * h for c, h in steps[t:]), abs=1e-9)


def test_q0_of_a_success_in_n_steps_is_n_minus_the_horizon() -> None:
    assert costs_to_go([1, 1, 1 - 15], [0, 0, 0], 0.0) == [-12, -13, -14]


def test_the_policy_gradient_makes_low_cost_actions_more_likely() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    logprob = torch.log_softmax(logits, -1)[[0, 1], [2, 0]]
    loss = policy_gradient(logprob, torch.tensor([-2.0, 1.0]), 4)
    assert loss.item() == pytest.approx((-2.0 + 1.0) * math.log(1 / 3) / 4)
    loss.backward()
    third = 1 / 3
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(
        [2 * third / 4, 2 * third / 4, -2 * (1 - third) / 4]
    )  # descent raises its logit
    assert logits.grad[1].tolist() == pytest.approx([(1 - third) / 4, -third / 4, -third / 4])


@pytest.mark.parametrize(
    ("ratio", "advantage", "learnt"),
    [(1.0, -1.0, True), (1.05, -1.0, True), (1.2, -1.0, False), (0.8, -1.0, True), (0.8, 1.0, False), (1.2, 1.0, True)],
)
def test_the_ppo_gradient_vanishes_once_the_ratio_is_clipped(ratio: float, advantage: float, learnt: bool) -> None:
    logprob = torch.tensor([math.log(ratio * 0.3)], requires_grad=True)
    loss = clipped_surrogate(logprob, torch.tensor([math.log(0.3)]), torch.tensor([advantage]), 0.1, 2)
    gain = -advantage
    assert loss.item() == pytest.approx(-min(ratio * gain, min(max(ratio, 0.9), 1.1) * gain) / 2)
    loss.backward()
    assert logprob.grad is not None
    assert float(logprob.grad) == pytest.approx(-gain * ratio / 2 if learnt else 0.0)


def test_ppo_and_policy_gradient_have_equal_gradients_at_the_policy_that_acted() -> None:
    old, advantage = torch.tensor([-0.3, -2.0]), torch.tensor([0.7, -1.5])
    gradients = []
    for loss in (
        lambda p: policy_gradient(p, advantage, 2),
        lambda p: clipped_surrogate(p, old, advantage, 0.1, 2),
    ):
        logprob = old.clone().requires_grad_()
        loss(logprob).backward()
        gradients.append(logprob.grad)
    assert torch.allclose(*gradients)  # type: ignore[arg-type]


def test_ppo_without_a_critic_and_other_contradictory_params_are_refused() -> None:
    for wrong, said in (
        ({"algorithm": "ppo"}, "needs a critic"),
        ({"temperature": 0.0}, "does not explore"),
        ({"max_steps": 2, "gradient_accumulation_steps": 5}, "trains nothing, since max_steps 2 accumulates at most 4"),
        ({"max_steps": 2, "gradient_accumulation_steps": 3, "replay_buffer": 0}, "accumulates at most 2 times"),
        ({"dtype": "bfloat16"}, "works only with adapters"),
        ({"tf32": True}, "tf32 works only with device: cuda"),
        ({"lora": {"dropout": 0.1}}, "lora.dropout must be 0"),
        ({"launcher": {"kind": "torchrun", "processes": 2}}, "supports only single and fork"),
        ({"launcher": {"kind": "fork", "processes": 2}, "device": "cuda"}, "use single on a GPU"),
    ):
        with pytest.raises(ValidationError, match=said):
            RLParams.model_validate(wrong)
    assert RLParams.model_validate({"algorithm": "ppo", "critic": {}}).critic is not None


def episode(name: int, success: bool = True) -> RLTrajectory:
    return RLTrajectory(str(name), success, [])


def test_replay_keeps_the_latest_successes_and_samples_with_replacement_by_key() -> None:
    replay = Replay(3)
    assert replay.sample(4, "none") == []  # an empty sample causes no update
    replay.add([episode(1), episode(2, success=False), episode(3), episode(4), episode(5)])
    assert [one.id for one in replay.kept] == ["3", "4", "5"]
    draws = [one.id for key in range(300) for one in replay.sample(4, key)]
    assert all(abs(draws.count(name) / len(draws) - 1 / 3) < 0.05 for name in "345")
    assert any(len({one.id for one in replay.sample(4, key)}) < 3 for key in range(20))
    assert replay.sample(4, 7) == Replay(3, replay.kept).sample(4, 7) != replay.sample(4, 8)
    replay.clear()
    assert not replay.kept
    nothing = Replay(0)
    nothing.add([episode(1)])
    assert nothing.sample(2, 0) == []
