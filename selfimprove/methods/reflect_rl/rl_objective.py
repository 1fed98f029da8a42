"""The objectives of policy gradient and PPO in the paper's costs, c = -r (docs/reflect-rl.md, L16 to L18).

For an episode with costs c_t and policy entropies H_t, Q_t = sum over k >= t of (c_k - beta H_k), undiscounted, and
A_t = Q_t - V_t, where V is 0 without a critic. There is no baseline, normalisation, GAE or KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # not at run time: stages that play import it only in their helper


@dataclass(frozen=True, slots=True)
class Decision:
    """One action as it was taken.

    Attributes:
        prompt: token ids of the policy's prompt.
        token: the label's id; ``allowed``: the ids it was chosen from (None: the whole vocabulary).
        logprob, entropy: of that choice, in nats, at that time.
        cost: of the resulting step.
    """

    prompt: list[int]
    token: int
    allowed: list[int] | None
    logprob: float
    entropy: float
    cost: float


@dataclass(frozen=True, slots=True)
class RLTrajectory:
    """An episode in the form used by the update."""

    id: str
    success: bool
    decisions: list[Decision]


def costs_to_go(costs: Sequence[float], entropies: Sequence[float], beta: float) -> list[float]:
    """Q_t of every step of an episode; an entropy of 1 nat reduces the cost by ``beta``."""
    backwards = [cost - beta * entropy for cost, entropy in zip(costs, entropies, strict=True)][::-1]
    return list(accumulate(backwards))[::-1]


def targets(trajectory: RLTrajectory, beta: float) -> list[float]:
    """Q_t of an episode's decisions."""
    steps = trajectory.decisions
    return costs_to_go([step.cost for step in steps], [step.entropy for step in steps], beta)


def policy_gradient(logprob: torch.Tensor, advantage: torch.Tensor, steps: int) -> torch.Tensor:
    """(1 / N) sum of A_t log pi(a_t), whose minimisation makes cheap actions likely.

    ``logprob`` and ``advantage`` are [decisions] of a micro-batch; ``steps`` is N of the whole update.
    """
    return (advantage * logprob).sum() / steps


def clipped_surrogate(
    logprob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, clip: float, steps: int
) -> torch.Tensor:
    """-(1 / N) sum of min(rho (-A), clip(rho, 1 +- clip) (-A)) with rho = pi / pi_old; arguments as above."""
    ratio = (logprob - old).exp()
    gain = -advantage
    return -(ratio * gain).minimum(ratio.clamp(1 - clip, 1 + clip) * gain).sum() / steps
