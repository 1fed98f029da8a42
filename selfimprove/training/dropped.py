"""Warns that many of the examples or pairs are longer than ``max_length`` and were left out."""

import sys

LOUD = 0.05
"""Share of the data above which leaving it out is said on standard error; the counts are always in train.json."""


def warn_of_dropped(kind: str, dropped: int, kept: int, max_length: int) -> None:
    """Print one sentence if more than ``LOUD`` of the data is too long.

    Args:
        kind: what the data are: examples or pairs.
    """
    total = dropped + kept
    if dropped > LOUD * total:
        print(
            f"WARNING: {dropped / total:.0%} of your {kind} were dropped ({dropped} of {total}): longer than "
            f"max_length {max_length} (raise train.max_length).",
            file=sys.stderr,
            flush=True,
        )
