"""How training reports progress."""

from collections.abc import Callable, Mapping

Progress = Callable[[int, int, str, Mapping[str, float]], object]
"""Called by the first process after each optimiser step, or iteration: how many of how many are done, a note to show,
and points of curves by name (none at most steps)."""
