"""Seed keys: every random choice is keyed by its purpose, never by when it happens.

A sample's noise is derived from ``(run, task, turn, sample)``. It therefore does not depend on the order of the work,
the number of workers, the other rows of the batch, restarts or Python's hash salt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from hashlib import blake2b


def key_bits(*parts: object) -> int:
    """A 64-bit hash of the ``str`` of each part: the same on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def rng(*parts: object) -> random.Random:
    """A private generator seeded with ``key_bits(*parts)``, for shuffles and choices outside the engines."""
    return random.Random(key_bits(*parts))


def datasets_order(count: int, seed: int) -> list[int]:
    """The order of ``datasets.Dataset.shuffle(seed=seed)`` for ``count`` rows, as used by the original SPIN."""
    import numpy as np

    return [int(index) for index in np.random.default_rng(seed).permutation(count)]


@dataclass(frozen=True)
class SeedKey:
    """Identifies one sample: the run's seed, the task's id, the turn (0-based) and the sample's index in that turn."""

    run: int
    task: str
    turn: int = 0
    sample: int = 0

    def bits(self) -> int:
        """64 bits for a counter-based generator."""
        return key_bits(self.run, self.task, self.turn, self.sample)

    def at(self, sample: int) -> SeedKey:
        """The key of another sample of the same turn."""
        return replace(self, sample=sample)

    def __str__(self) -> str:
        return f"{self.run}/{self.task}/{self.turn}/{self.sample}"
