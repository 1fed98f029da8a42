"""The type of callbacks that report training progress."""

from collections.abc import Callable, Mapping

Progress = Callable[[int, int, str, Mapping[str, float]], object]
"""Called by the first process after each optimiser step or iteration, with the number done, the total, a note to show,
and points of curves by name (empty at most steps)."""
