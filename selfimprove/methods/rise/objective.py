"""RISE's objective: reward-weighted regression on the collected attempts (docs/rise.md, R21 and R26).

An attempt y_i with reward r_i, generated in state s_i (the problem and the earlier attempts with their feedback), is
weighted by the exponential of its reward divided by a temperature tau::

    minimise  mean_i  w_i * NLL_i,    w_i = exp((r_i - b_i) / tau),    NLL_i = -1/|y_i| * sum_t log p(y_it | s_i, y_i<t)

with b = 0 unless a baseline is configured, and the mean over the examples of an optimiser step. ``convert`` stores w_i
as the weight of each example's last message, the only one trained on. The rest is weighted SFT, shared by all methods:
``training.objective.example_scales`` divides by |y_i| and by the number of examples (reduction ``example_mean``), and
``weighted_nll`` sums over tokens. ``weights: batch`` (of a row) divides by the mean w of the step.
"""

import math
from collections.abc import Iterable, Sequence
from typing import get_args

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.methods.rise.params import Baseline


def weights(rewards: Sequence[float], temperature: float, baselines: Sequence[float] | None = None) -> list[float]:
    """w_i = exp((r_i - b_i) / temperature), with b = 0 by default (RISE: 1, 0, -1 -> 12.1825, 1, 0.0821 at 0.4).

    Raises:
        UserError: the temperature is not above 0, or so small that a weight overflows.
    """
    if not temperature > 0:
        raise UserError(f"convert.reward_temperature is {temperature}; set it above 0.")
    offsets = [0.0] * len(rewards) if baselines is None else baselines
    try:
        return [math.exp((reward - b) / temperature) for reward, b in zip(rewards, offsets, strict=True)]
    except OverflowError:
        raise UserError(
            f"convert.reward_temperature {temperature} makes weights overflow; set it higher (RISE: 0.4)."
        ) from None


def reward_baselines(attempts: Sequence[tuple[str, int, float]], kind: Baseline) -> list[float]:
    """b of each attempt (problem, turn, reward): 0, the mean reward of its problem, or that of its turn.

    Means are over the given attempts, i.e. those that are trained on.
    """
    if kind not in get_args(Baseline):
        raise ValueError(f"there is no baseline {kind!r}; choose one of {', '.join(get_args(Baseline))}")
    if kind == "none":
        return [0.0] * len(attempts)
    groups: dict[str | int, list[float]] = {}
    keys = [problem if kind == "problem_mean" else turn for problem, turn, _ in attempts]
    for key, (_, _, reward) in zip(keys, attempts, strict=True):
        groups.setdefault(key, []).append(reward)
    means = {key: math.fsum(rewards) / len(rewards) for key, rewards in groups.items()}
    return [means[key] for key in keys]


def unweighted(examples: Iterable[Example]) -> list[Example]:
    """The same examples with weight 1 on every trained message: plain SFT on the same data."""
    return [
        one.model_copy(
            update={"messages": [m.model_copy(update={"weight": 1.0}) if m.weight else m for m in one.messages]}
        )
        for one in examples
    ]


def weight_statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean (which scales the learning rate), extremes and effective number of examples, (sum w)^2 / sum w^2."""
    if not values:
        return {"mean": 0.0, "min": 0.0, "max": 0.0, "effective_examples": 0.0}
    total, squares = math.fsum(values), math.fsum(w * w for w in values)
    return {
        "mean": total / len(values),
        "min": min(values),
        "max": max(values),
        "effective_examples": total * total / squares if squares else 0.0,
    }
