"""How training tells of its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Called after each optimiser step, or iteration, by the first process."""

    def __call__(self, done: int, total: int, note: str, metrics: Mapping[str, float], /) -> object:
        """``done`` of ``total`` steps; a note to show; points of curves by name (none at most steps)."""
        ...
