"""Outcomes: one record per task for each row of a results table, so that rows can be compared task by task."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

from selfimprove.core.errors import UserError
from selfimprove.core.records import LARGEST, Record, mean_and_error

Estimate = dict[str, float | int]
"""{mean, se, n}: mean, standard error of the mean, number of tasks."""

BEYOND = 3
"""Differences of more standard errors than this are marked, and only such differences are claimed."""


def _summable(value: float) -> float:
    if abs(value) > LARGEST:
        raise ValueError(f"numbers must not exceed {LARGEST:g}")
    return value


Number = Annotated[float, AfterValidator(_summable)]
"""A number in a file of results whose square is finite."""


class Outcome(Record):
    """One task's value of every averaged metric. Runs over the same split are compared by these, in pairs."""

    id: str
    values: dict[str, Number]


def average(results: Sequence[Outcome]) -> dict[str, Estimate]:
    """Mean and standard error of every metric over the tasks that have it."""
    return {name: mean_and_error(_of(results, name).values()) for name in _names(results)}


def paired_difference(a: Mapping[str, float], b: Mapping[str, float]) -> Estimate:
    """Mean of a - b over the problems, with the standard error of the paired difference.

    Raises:
        UserError: ``a`` and ``b`` cover different problems.
    """
    if a.keys() != b.keys():
        raise UserError("the two runs were evaluated on different problems; evaluate both on the same split.")
    return mean_and_error(a[key] - b[key] for key in a)


def unpaired_difference(a: Mapping[str, float], b: Mapping[str, float]) -> Estimate:
    """Difference a - b of two independent estimates; its n is the smaller of theirs."""
    return {"mean": a["mean"] - b["mean"], "se": math.hypot(a["se"], b["se"]), "n": min(a["n"], b["n"])}


def compare(run: Sequence[Outcome], other: Sequence[Outcome]) -> dict[str, Estimate]:
    """Paired difference (run - other) of every metric that both runs have.

    Raises:
        UserError: a metric's tasks differ between the two.
    """
    shared = [name for name in _names(run) if name in _names(other)]
    return {name: paired_difference(_of(run, name), _of(other, name)) for name in shared}


def beyond(difference: Mapping[str, float | int]) -> bool:
    """Whether a difference is more than ``BEYOND`` standard errors from 0; a single task has no standard error."""
    return difference["n"] > 1 and abs(difference["mean"]) > BEYOND * difference["se"]


def _names(results: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.values))


def _of(results: Sequence[Outcome], name: str) -> dict[str, float]:
    return {result.id: result.values[name] for result in results if name in result.values}


def ratio(pairs: Iterable[tuple[int, int]]) -> Estimate:
    """Sum of hits over sum of chances, given one (hits, chances) pair per problem; n is the sum of chances.

    The standard error treats the chances of a problem as one cluster (linearised ratio estimator).
    """
    counts = [(hits, chances) for hits, chances in pairs if chances]
    total = sum(chances for _, chances in counts)
    if not total:
        return {"mean": 0.0, "se": 0.0, "n": 0}
    rate = sum(hits for hits, _ in counts) / total
    groups = len(counts)
    spread = math.fsum((hits - rate * chances) ** 2 for hits, chances in counts)
    error = math.sqrt(spread * groups / (groups - 1)) / total if groups > 1 else 0.0
    return {"mean": rate, "se": error, "n": total}
