"""Self-play's objective (SPIN paper, eq. 4.7): tell the expert's response from the opponent's (docs/spin.md, S1).

    h = [log p(y|x) - log p_opponent(y|x)] - [log p(y'|x) - log p_opponent(y'|x)];   loss = mean log(1 + exp(-beta h))

for the expert's response y and the opponent's y'. DPO has the same form, with a fixed reference and preference data.
"""

import math
from typing import Literal

import torch
from torch.nn.functional import cross_entropy, logsigmoid

Loss = Literal["sigmoid", "hinge"]

FIRST_LOSS: dict[str, float] = {"sigmoid": math.log(2), "hinge": 1.0}
"""The loss of a model that is its own opponent, with h = 0 for every pair."""

METRICS = (
    "loss", "rewards/real", "rewards/generated", "rewards/margins", "rewards/accuracies", "logps/real",
    "logps/generated", "logits/real", "logits/generated", "nll/real", "drift",
)  # fmt: skip
"""The metrics of a step, as means over its pairs (docs/spin.md, S35). ``logits/…``: mean over the vocabulary at a
side's scored tokens (the original's also includes prompt and padding). ``nll/real``: per token of the real side;
``drift``: absolute difference from the opponent's log-probabilities per token of both sides (0 at the start)."""


def token_log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[n] float32 log-probabilities of ``tokens`` [n] under the ``logits`` [n, vocabulary] that predict them."""
    return -cross_entropy(logits.float(), tokens, reduction="none")


def over_sequences(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[sequences] sums of ``values`` [n], whose first ``lengths[0]`` elements are the first sequence's, and so on."""
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    return values.new_zeros(len(lengths)).index_add(0, owners, values)


def gap(scores: torch.Tensor, opponent: torch.Tensor, *, reference_free: bool = False) -> torch.Tensor:
    """h of each pair, from the model's and the opponent's scores [pairs, 2] (real, generated)."""
    ratios = scores if reference_free else scores - opponent
    return ratios[:, 0] - ratios[:, 1]


def pair_losses(h: torch.Tensor, beta: float, loss: Loss) -> torch.Tensor:
    """The loss of each pair: -logsigmoid(beta h), or relu(1 - beta h)."""
    return -logsigmoid(beta * h) if loss == "sigmoid" else torch.relu(1 - beta * h)


def implicit_rewards(scores: torch.Tensor, opponent: torch.Tensor, beta: float) -> torch.Tensor:
    """[pairs, 2] beta (log p - log p_opponent), relative to the opponent even if the loss is reference-free."""
    return beta * (scores - opponent)
