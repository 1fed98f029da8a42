"""Updates: N, accumulation, critic, replayed data, non-finite losses (docs/reflect-rl.md, L17 to L22)."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.rl_config import CriticParams, RLParams
from selfimprove.methods.reflect_rl.rl_critic import Critic
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_learner import OPTIMIZER, WEIGHTS, Learner
from selfimprove.methods.reflect_rl.rl_objective import Decision, RLTrajectory, targets
from selfimprove.methods.reflect_rl.rl_policy import Policy, weights_hash
from tests.methods.reflect_rl.test_rl_policy import CONTEXT, IDS, decisions, logprobs


def make(folder: Path, **params: object) -> tuple[Learner, Policy]:
    cfg = RLParams.model_validate({"row_tokens": 64, "micro_batch_tokens": 150, "max_steps": 10} | params)
    policy = Policy(folder, cfg.loading(CONTEXT), 3, IDS)
    body = Policy(folder, cfg.loading(CONTEXT), 3, IDS) if cfg.critic and not cfg.critic.shared else None
    return Learner(policy, cfg, Group(), 3, body), policy


def episodes(policy: Policy, lengths: list[int], cost: float = 1.0) -> list[RLTrajectory]:
    """Episodes as if played by the policy itself, that is, with its own log-probabilities."""
    some = decisions(sum(lengths))
    known = logprobs(policy, some).tolist()
    pairs = enumerate(zip(some, known, strict=True))
    some = [replace(one, logprob=logprob, entropy=0.3, cost=cost * (-1) ** i) for i, (one, logprob) in pairs]
    made = []
    for length in lengths:
        made.append(RLTrajectory(str(len(some)), True, some[:length]))
        some = some[length:]
    return made


def formula(played: list[RLTrajectory], beta: float = 0.0) -> float:
    """(1 / N) sum of Q_t log pi(a_t)."""
    pairs = []
    for steps in (one.decisions for one in played):
        for t, now in enumerate(steps):
            pairs.append((sum(later.cost - beta * later.entropy for later in steps[t:]), now.logprob))
    return sum(q * p for q, p in pairs) / len(pairs)


def test_the_loss_averages_all_decisions_of_all_episodes_in_any_layout(tiny: Path) -> None:
    for layout in ({}, {"row_tokens": 500, "micro_batch_tokens": 9000}, {"row_tokens": 1, "micro_batch_tokens": 1}):
        learner, policy = make(tiny, entropy_coef=0.2, **layout)
        played = episodes(policy, [3, 1, 6, 2])
        loss = learner.train(played, iteration=0, fresh=True)
        assert loss == pytest.approx(formula(played, 0.2), abs=1e-5)
        assert learner.tokens == sum(len(one.prompt) + 1 for e in played for one in e.decisions)


def test_an_update_is_a_step_of_adam_with_clipped_gradients(tiny: Path) -> None:
    learner, policy = make(tiny, lr=1e-3, weight_decay=0.01, grad_clip=1e-3)
    played = episodes(policy, [4, 4])
    twin = make(tiny)[1]
    values = torch.zeros(())
    from selfimprove.methods.reflect_rl.rl_policy import example

    for e in played:
        for one, q in zip(e.decisions, targets(e, 0.0), strict=True):
            value, _ = twin.evaluate(((0,),), [one], [example(one)])
            values = values + q * value[0] / 8
    values.backward()
    torch.nn.utils.clip_grad_norm_(twin.trainable, 1e-3)
    torch.optim.Adam(twin.trainable, lr=1e-3, weight_decay=0.01).step()
    learner.train(played, iteration=0, fresh=True)
    for name, value in policy.state().items():
        assert torch.allclose(value, twin.state()[name], atol=2e-4), name


def test_betas_set_the_weight_of_earlier_gradients(tiny: Path) -> None:
    """With betas of 0 an update ignores them, and moves every weight by lr whatever the size of its gradient."""
    learner, policy = make(tiny, lr=1e-3, betas=[0.0, 0.0], weight_decay=0.0)
    learner.train(episodes(policy, [4, 4]), iteration=0, fresh=True)
    before = {name: value.clone() for name, value in policy.state().items()}
    learner.train(episodes(policy, [4, 4], cost=-1.0), iteration=1, fresh=True)
    moved = torch.cat([(value - before[name]).abs().flatten() for name, value in policy.state().items()])
    moved = moved[moved > 0]  # embeddings of absent tokens have no gradient
    assert len(moved) > 1000
    assert ((moved - 1e-3).abs() < 1e-4).float().mean() > 0.95


def test_a_linear_schedule_ends_at_zero(tiny: Path) -> None:
    learner, policy = make(tiny, schedule="linear", max_steps=4)
    before = weights_hash(policy.model)
    learner.train(episodes(policy, [2]), iteration=4, fresh=True)
    assert weights_hash(policy.model) == before
    learner.train(episodes(policy, [2]), iteration=3, fresh=True)
    assert weights_hash(policy.model) != before


def test_accumulated_calls_form_one_update_over_fresh_and_replayed_episodes(tiny: Path) -> None:
    learner, policy = make(tiny, gradient_accumulation_steps=3)
    fresh, replayed = episodes(policy, [3, 2]), episodes(policy, [4], cost=-2.0)
    before = weights_hash(policy.model)
    assert learner.train(fresh, iteration=0, fresh=True) is None
    assert learner.train(replayed, iteration=0, fresh=False) is None
    assert weights_hash(policy.model) == before
    loss = learner.train(fresh, iteration=1, fresh=True)
    assert loss == pytest.approx(formula([*fresh, *replayed, *fresh]), abs=1e-5)
    assert weights_hash(policy.model) != before
    assert learner.train(fresh, iteration=1, fresh=True) is None  # the count has restarted


def test_ppo_takes_several_steps_per_batch_and_the_first_equals_policy_gradient(tiny: Path) -> None:
    params = {"algorithm": "ppo", "critic": {"shared": True}, "lr": 1e-3}
    one, policy = make(tiny, **params, ppo_epochs=1)
    played = episodes(policy, [3, 5])
    one.train(played, iteration=0, fresh=True)
    plain, twin = make(tiny, lr=1e-3)
    plain.train(played, iteration=0, fresh=True)
    assert all(torch.allclose(value, twin.state()[name], atol=1e-5) for name, value in policy.state().items())
    three, other = make(tiny, **params)
    three.train(played, iteration=0, fresh=True)
    assert three.tokens == 3 * one.tokens
    assert weights_hash(other.model) != weights_hash(policy.model)


def test_ppo_computes_advantages_once_before_its_first_pass(tiny: Path) -> None:
    """The two kinds of bodies that a critic reads are equal until then, so PPO's passes must be the same with both."""
    ends = []
    for shared in (True, False):
        critic = {"shared": shared, "every": 9}
        learner, policy = make(tiny, algorithm="ppo", ppo_clip=10.0, lr=1e-2, critic=critic)
        assert learner._critic is not None
        torch.nn.init.ones_(learner._critic.head[0].weight)  # type: ignore[arg-type]
        learner.train(episodes(policy, [3, 5]), iteration=0, fresh=True)
        seen = learner._critic.state(Group())["seen"][0]
        assert sum(len(q) for _, q in seen) == 3 + 5
        ends.append(policy.state())
    assert all(torch.allclose(value, ends[1][name], atol=1e-3) for name, value in ends[0].items())


def test_the_loss_of_ppo_is_the_mean_of_its_passes_whose_ratios_are_clipped(tiny: Path) -> None:
    """The second pass is computed here from the policy after one."""
    params = {"algorithm": "ppo", "critic": {"shared": True}, "lr": 3e-3, "ppo_clip": 0.05}
    one, policy = make(tiny, **params, ppo_epochs=1)
    played = episodes(policy, [3, 5])
    first = one.train(played, iteration=0, fresh=True)
    assert first is not None
    taken = [step for episode in played for step in episode.decisions]
    ratio = (logprobs(policy, taken) - torch.tensor([step.logprob for step in taken])).exp()
    gain = -torch.tensor([q for episode in played for q in targets(episode, 0.0)])  # V is 0
    second = -float((ratio * gain).minimum(ratio.clamp(0.95, 1.05) * gain).mean())
    assert second != pytest.approx(-float((ratio * gain).mean()), abs=1e-3)
    two, _ = make(tiny, **params, ppo_epochs=2)
    assert two.train(played, iteration=0, fresh=True) == pytest.approx((first + second) / 2, abs=1e-5)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_critic_starts_at_zero_and_learns_the_costs_of_states(kind: Any) -> None:
    critic = Critic(CriticParams(kind=kind, lr=0.05, every=2, epochs=300), 8, seed=1, weight_decay=0.0, grad_clip=0.3)
    torch.manual_seed(0)
    hidden = torch.randn(60, 8)
    q = 3 * hidden[:, 0] - 1
    assert critic.value(hidden).abs().max() == 0
    critic.see(hidden[:30], q[:30])
    assert critic.end_update(Group()) is None
    assert critic.value(hidden).abs().max() == 0
    critic.see(hidden[30:], q[30:])
    loss = critic.end_update(Group())
    assert loss is not None
    assert loss < float((q / 100).square().mean())
    assert (critic.value(hidden) - q).abs().mean() < 0.3 * q.abs().mean()
    assert sum(layer.weight.numel() for layer in critic.head if hasattr(layer, "weight")) == (  # type: ignore[misc,operator]
        8 if kind == "linear" else 72
    )
    assert critic.end_update(Group()) is None
    assert critic.state(Group())["seen"] == [[]]  # data is discarded after training


def test_a_critics_first_weights_depend_only_on_the_seed_of_the_run() -> None:
    made = []
    for elsewhere, seed in ((0, 1), (1, 1), (0, 2)):
        torch.manual_seed(elsewhere)
        critic = Critic(CriticParams(kind="mlp"), 8, seed=seed, weight_decay=0.0, grad_clip=0.3)
        made.append(critic.head.state_dict()["0.weight"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_a_learner_passes_the_seed_of_the_run_to_its_critic(tiny: Path) -> None:
    cfg = RLParams.model_validate({"critic": {"kind": "mlp", "shared": True}})
    policy = Policy(tiny, cfg.loading(CONTEXT), 3, IDS)
    critics = [Learner(policy, cfg, Group(), seed)._critic for seed in (1, 2)]
    first, second = (critic.head.state_dict()["0.weight"] for critic in critics if critic is not None)
    assert not torch.equal(first, second)


def test_a_critic_reads_the_hidden_states_of_a_model_in_bfloat16() -> None:
    critic = Critic(CriticParams(every=1, lr=0.05), 4, seed=1, weight_decay=0.0, grad_clip=0.3)
    hidden = torch.ones(3, 4, dtype=torch.bfloat16)
    critic.see(hidden, torch.tensor([1.0, 2.0, 3.0]))
    assert critic.end_update(Group()) is not None
    assert critic.value(hidden).dtype == torch.float32


def test_the_loss_of_the_critic_is_the_squared_error_in_hundreds() -> None:
    critic = Critic(CriticParams(every=1, epochs=1), 4, seed=1, weight_decay=0.001, grad_clip=0.3)
    critic.see(torch.ones(3, 4), torch.tensor([100.0, 200.0, -300.0]))
    assert critic.end_update(Group()) == pytest.approx((1 + 4 + 9) / 3)


def test_the_critic_has_the_policys_weight_decay_and_gradient_clip(tiny: Path) -> None:
    """As in the original, whose two optimisers have the same settings. The critic once had neither."""
    learner, _ = make(tiny, critic={"every": 1, "epochs": 4, "lr": 0.05}, weight_decay=0.1, grad_clip=0.01)
    critic = learner._critic
    assert critic is not None
    width = critic.head[0].in_features
    torch.manual_seed(0)
    hidden, q = 5 * torch.randn(20, int(width)), 100 * torch.randn(20)  # type: ignore[arg-type]
    twin = torch.nn.Linear(int(width), 1)  # type: ignore[arg-type]
    torch.nn.init.zeros_(twin.weight)
    torch.nn.init.zeros_(twin.bias)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        ((q - twin(hidden)[:, 0]) / 100).square().mean().backward()  # type: ignore[no-untyped-call]
        assert float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)) > 0.01
        optimizer.step()
    critic.see(hidden, q)
    critic.end_update(Group())
    assert torch.allclose(critic.value(hidden), twin(hidden)[:, 0], atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_advantages_are_q_minus_v_and_the_critic_ignores_replayed_episodes(tiny: Path, shared: bool) -> None:
    learner, policy = make(
        tiny, critic={"shared": shared, "lr": 0.5, "every": 1, "epochs": 50}, lr=1e-9, weight_decay=0.0
    )
    played = episodes(policy, [3, 5])
    assert learner.train(played, iteration=0, fresh=True) == pytest.approx(formula(played), abs=1e-5)
    learner.train(episodes(policy, [4], cost=50.0), iteration=0, fresh=False)
    loss = learner.end_iteration()
    assert loss is not None
    assert loss < 1e-3  # with costs of about 1; with the 50 it would be about 0.05
    values = learner.train(played, iteration=1, fresh=True)
    assert values != pytest.approx(formula(played), abs=1e-4)  # V is subtracted now


def test_the_critic_learns_every_n_updates_counting_replayed_ones_and_has_no_loss_in_between(tiny: Path) -> None:
    """Counted as in the original. A critic without data once reported a loss of 0."""
    learner, policy = make(tiny, critic={"every": 3})
    played, told = episodes(policy, [3]), []
    for iteration in range(4):
        learner.train(played, iteration=iteration, fresh=True)
        learner.train(played, iteration=iteration, fresh=False)
        told.append(learner.end_iteration() is not None)
    assert told == [False, True, True, False]  # after updates 3 and 6
    learner, policy = make(tiny, critic={"every": 1}, gradient_accumulation_steps=2)
    told = []
    for iteration in range(4):
        learner.train(played, iteration=iteration, fresh=True)
        told.append(learner.end_iteration() is not None)
    assert told == [False, True, False, True]  # without an update there is nothing to learn from


def test_no_gradient_of_the_critic_reaches_the_body(tiny: Path) -> None:
    learner, policy = make(tiny, critic={"shared": True, "every": 1})
    learner.train(episodes(policy, [3]), iteration=0, fresh=True)
    assert learner.end_iteration() is not None
    without, other = make(tiny)  # V was 0, so both learnt the same
    without.train(episodes(other, [3]), iteration=0, fresh=True)
    assert weights_hash(policy.model) == weights_hash(other.model)


class Watched(Decision):
    """A decision that weak references can refer to."""


def test_without_a_critic_there_is_no_critic_loss_and_no_decision_is_kept_after_its_update(
    tiny: Path, tmp_path: Path
) -> None:
    """The original keeps them forever, even without a critic."""
    learner, policy = make(tiny)
    (episode,) = episodes(policy, [3])
    watched: list[Decision] = [Watched(**asdict(one)) for one in episode.decisions]
    left = [weakref.ref(one) for one in watched]
    learner.train([replace(episode, decisions=watched)], iteration=0, fresh=True)
    del watched
    gc.collect()
    assert [one() for one in left] == [None] * 3
    assert learner.end_iteration() is None
    learner.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {WEIGHTS, OPTIMIZER}


def test_a_non_finite_loss_or_gradient_is_refused_and_the_weights_are_unchanged(tiny: Path) -> None:
    learner, policy = make(tiny)
    before = weights_hash(policy.model)
    with pytest.raises(UserError, match=r"the loss of round 3 is nan and the gradient norm nan; lower rl.lr"):
        learner.train(episodes(policy, [3], cost=math.nan), iteration=2, fresh=True)
    with pytest.raises(UserError, match=r"the loss of round 3 is -?\d\S* and the gradient norm inf; lower rl.lr"):
        learner.train(episodes(policy, [3], cost=1e30), iteration=2, fresh=True)
    assert weights_hash(policy.model) == before


def test_a_policy_with_non_finite_weights_is_refused(tiny: Path) -> None:
    learner, policy = make(tiny)
    learner.check_weights()
    policy.trainable[-1].data.view(-1)[-1] = math.inf
    with pytest.raises(UserError, match=r"^rl: after the last round, model\..* holds numbers that are not finite"):
        learner.check_weights()


@pytest.mark.parametrize("calls", [3, 4], ids=["within an update", "between updates"])
@pytest.mark.parametrize("critic", [None, {"kind": "mlp", "every": 3, "shared": True}])
def test_a_learner_restored_from_a_checkpoint_continues_bit_identically(
    tiny: Path, tmp_path: Path, critic: object, calls: int
) -> None:
    """Two calls form an update, so the third waits for the next one. The critic is trained after three updates."""
    learner, policy = make(tiny, critic=critic, gradient_accumulation_steps=2)
    played = episodes(policy, [2, 3, 1])
    for number in range(calls):
        learner.train(played[: number + 1], iteration=number, fresh=number % 2 == 1)
        learner.end_iteration()
    rest = learner.save(tmp_path)
    assert rest["waiting"] == ([(episode, False) for episode in played] if calls == 3 else [])
    other, twin = make(tiny, critic=critic, gradient_accumulation_steps=2)
    other.load(tmp_path, rest)
    ends: list[list[float | None]] = [[], []]
    for one, losses in zip((learner, other), ends, strict=True):
        for number in range(6 - calls):  # up to and including the third update
            losses += one.train(played, iteration=5, fresh=number != 1), one.end_iteration()
    assert ends[0] == ends[1]
    assert (ends[0][-1] is not None) == (critic is not None)
    assert other.tokens == learner.tokens
    assert weights_hash(policy.model) == weights_hash(twin.model)


def test_a_linear_schedule_falls_in_proportion_to_the_iterations(tiny: Path) -> None:
    learner, policy = make(tiny, lr=1e-3, schedule="linear", max_steps=4)
    rates = []
    for iteration in (0, 1, 3):
        learner.train(episodes(policy, [2]), iteration=iteration, fresh=True)
        rates.append(learner._optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 7.5e-4, 2.5e-4])
