"""A sum of floats that is the same in every version of Python."""

import operator
from collections.abc import Iterable
from functools import reduce


def float_sum(values: Iterable[float]) -> float:
    """Add from left to right, rounding after each addition, as ``sum`` does up to Python 3.11.

    From Python 3.12 on, ``sum`` compensates the rounding errors of floats, so its last digits differ. ``math.fsum`` is
    the same everywhere and more accurate, but would change the bytes of the runs in ``results/published``.
    """
    return reduce(operator.add, values, 0)
