"""One policy update from the episodes just played, or from replayed successes (docs/reflect-rl.md, L15 to L21).

Each call of ``train`` is one step of gradient accumulation. The update itself is over all accumulated episodes, and its
divisor N is the number of their decisions. The layout of decisions in rows, micro-batches and processes affects speed
and memory, but not the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from selfimprove.core.errors import UserError
from selfimprove.core.sums import float_sum
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_critic import Critic
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_objective import (
    Decision,
    RLTrajectory,
    clipped_surrogate,
    policy_gradient,
    targets,
)
from selfimprove.methods.reflect_rl.rl_policy import Policy, example, order
from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import MicroBatch, lay_out

WEIGHTS, OPTIMIZER, CRITIC = "policy.safetensors", "optimizer.pt", "critic.pt"


class Learner:
    """Optimiser, critic, and the episodes accumulated for the next update.

    Attributes:
        tokens: number of tokens processed by all updates so far, counting every pass.
    """

    def __init__(
        self, policy: Policy, params: RLParams, group: Group, seed: int, critic_body: Policy | None = None
    ) -> None:
        """``critic_body``: the model whose hidden states the critic reads; None: the policy's own."""
        self._policy, self._params, self._group, self._critic_body = policy, params, group, critic_body
        self._optimizer = torch.optim.Adam(  # fused: the same bits on every vendor's CPU (pipeline/kernels.py)
            policy.trainable, lr=params.lr, betas=params.betas, weight_decay=params.weight_decay, fused=True
        )
        hidden = policy.model.config.get_text_config().hidden_size
        self._critic = None
        if params.critic is not None:
            decay, clip = params.weight_decay, params.grad_clip
            self._critic = Critic(params.critic, hidden, seed, params.device, weight_decay=decay, grad_clip=clip)
        self._waiting: list[tuple[RLTrajectory, bool]] = []
        self._calls = 0
        self._critic_loss: float | None = None
        self.tokens = 0

    def train(self, episodes: Sequence[RLTrajectory], *, iteration: int, fresh: bool) -> float | None:
        """Train on episodes; returns the update's loss, or None while episodes are still being accumulated.

        Args:
            fresh: the episodes were just played. The critic is trained only on such episodes.

        Raises:
            UserError: the loss or the gradient norm is not finite.
        """
        self._waiting += [(episode, fresh) for episode in episodes]
        self._calls += 1
        if self._calls < self._params.gradient_accumulation_steps:
            return None
        waiting, self._waiting, self._calls = self._waiting, [], 0
        return self._update(waiting, iteration)

    def check_weights(self) -> None:
        """Raise a ``UserError`` if a weight is not finite."""
        for name, weight in self._policy.state().items():
            if not torch.isfinite(weight).all():
                raise UserError(
                    f"rl: after the last round, {name} holds numbers that are not finite; lower rl.lr or raise "
                    "rl.entropy_coef."
                )

    def end_iteration(self) -> float | None:
        """The critic's loss if it was trained since the last call, else None."""
        loss, self._critic_loss = self._critic_loss, None
        return loss

    def _update(self, episodes: Sequence[tuple[RLTrajectory, bool]], iteration: int) -> float:
        params, batch = self._params, _Batch(episodes, self._params.entropy_coef)
        lengths = [len(one.ids) for one in batch.examples]
        shares = lay_out(range(len(lengths)), lengths, params.row_tokens, params.micro_batch_tokens, self._group.world)
        share = [micro for micro in shares[self._group.rank] if micro]
        epochs = params.ppo_epochs if params.algorithm == "ppo" else 1
        self.tokens += epochs * sum(lengths)
        advantages = [torch.empty(0)] * len(share)
        for group in self._optimizer.param_groups:
            group["lr"] = params.lr * (1 - iteration / params.max_steps if params.schedule == "linear" else 1)
        losses = []
        for epoch in range(epochs):
            self._optimizer.zero_grad(set_to_none=True)
            loss = 0.0
            for place, micro in enumerate(share):
                logprob, hidden = self._policy.evaluate(micro, batch.decisions, batch.examples)
                if epoch == 0:  # advantages of the acting policy, before it is updated
                    advantages[place] = self._advantage(micro, batch, hidden)
                part = self._loss(logprob, micro, batch, advantages[place])
                part.backward()  # type: ignore[no-untyped-call]
                loss += float(part.detach())
            losses.append(self._group.total(loss))
            self._group.sum_gradients(self._policy.trainable)
            norm = float(torch.nn.utils.clip_grad_norm_(self._policy.trainable, params.grad_clip))
            if not (math.isfinite(losses[-1]) and math.isfinite(norm)):
                raise UserError(
                    f"rl: the loss of round {iteration + 1} is {losses[-1]:.4g} and the gradient norm {norm:.4g}; "
                    "lower rl.lr or raise rl.entropy_coef."
                )
            self._optimizer.step()
        if self._critic is not None and (critic_loss := self._critic.end_update(self._group)) is not None:
            self._critic_loss = critic_loss
        return float_sum(losses) / len(losses)

    def _advantage(self, micro: MicroBatch, batch: _Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Q - V of a micro-batch's decisions; the critic keeps the fresh ones."""
        rows = order(micro)
        q = torch.tensor([batch.q[index] for index in rows], dtype=torch.float32, device=hidden.device)
        if self._critic is None:
            return q
        if self._critic_body is not None:
            with torch.no_grad():
                _, hidden = self._critic_body.evaluate(micro, batch.decisions, batch.examples)
        fresh = torch.tensor([batch.fresh[index] for index in rows], device=hidden.device)
        advantage = q - self._critic.value(hidden)
        self._critic.see(hidden[fresh], q[fresh])
        return advantage

    def _loss(self, logprob: torch.Tensor, micro: MicroBatch, batch: _Batch, advantage: torch.Tensor) -> torch.Tensor:
        if self._params.algorithm == "pg":
            return policy_gradient(logprob, advantage, len(batch.q))
        old = [batch.decisions[index].logprob for index in order(micro)]
        before = torch.tensor(old, dtype=torch.float32, device=logprob.device)
        return clipped_surrogate(logprob, before, advantage, self._params.ppo_clip, len(batch.q))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write weights and optimiser (by the first process; all call it); returns the rest of the state to save."""
        critic = None if self._critic is None else self._critic.state(self._group)
        if self._group.first:
            save_file({name: value.contiguous() for name, value in self._policy.state().items()}, folder / WEIGHTS)
            torch.save(self._optimizer.state_dict(), folder / OPTIMIZER)
            if critic is not None:
                torch.save(critic, folder / CRITIC)
        return {"calls": self._calls, "waiting": self._waiting, "tokens": self.tokens}

    def load(self, folder: Path, rest: dict[str, Any]) -> None:
        """Restore the state that ``save`` wrote and returned."""
        device = self._params.device
        self._policy.restore(load_file(folder / WEIGHTS, device=device))
        # The optimiser moves its state to the device of the weights.
        self._optimizer.load_state_dict(torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True))
        if self._critic is not None:
            state = torch.load(folder / CRITIC, map_location=device, weights_only=True)
            self._critic.restore(state, self._group)
        self._calls, self._waiting, self.tokens = rest["calls"], list(rest["waiting"]), rest["tokens"]


class _Batch:
    """The decisions of accumulated episodes, concatenated."""

    def __init__(self, episodes: Sequence[tuple[RLTrajectory, bool]], beta: float) -> None:
        self.decisions: list[Decision] = [step for episode, _ in episodes for step in episode.decisions]
        self.q = [q for episode, _ in episodes for q in targets(episode, beta)]
        self.fresh = [fresh for episode, fresh in episodes for _ in episode.decisions]
        self.examples: list[EncodedExample] = [example(decision) for decision in self.decisions]
