"""Warns if many examples or pairs were dropped because they are longer than ``max_length``."""

import sys

LOUD = 0.05
"""Share of dropped data above which a warning is printed; the counts are always in train.json."""


def warn_of_dropped(kind: str, dropped: int, kept: int, max_length: int) -> None:
    """Print a warning if more than ``LOUD`` of the data was dropped.

    Args:
        kind: examples or pairs.
    """
    total = dropped + kept
    if dropped > LOUD * total:
        print(
            f"WARNING: {dropped / total:.0%} of your {kind} were dropped ({dropped} of {total}): longer than "
            f"max_length {max_length} (raise train.max_length).",
            file=sys.stderr,
            flush=True,
        )
