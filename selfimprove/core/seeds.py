"""Seed keys: every random choice is named by what it is for, never by when it happens.

A sample's noise comes from ``(run, task, turn, sample)``; so it does not depend on the order of the work, on the
number of workers, on who shares the batch, on a restart, or on Python's hash salt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from hashlib import blake2b


def key_bits(*parts: object) -> int:
    """64 bits named by ``parts`` (compared by ``str``): the same on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def rng(*parts: object) -> random.Random:
    """A private generator named by ``parts``; for shuffles and choices outside the engines."""
    return random.Random(key_bits(*parts))


def datasets_order(count: int, seed: int) -> list[int]:
    """The order of ``datasets.Dataset.shuffle(seed=seed)`` of so many rows, which the original SPIN shuffles with."""
    import numpy as np

    return [int(index) for index in np.random.default_rng(seed).permutation(count)]


@dataclass(frozen=True)
class SeedKey:
    """Names one sample: the run's seed, the task's id, the turn (0-based) and the sample's index in that turn."""

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
