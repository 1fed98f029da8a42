"""Replay of the most recent successful episodes, drawn uniformly with replacement (docs/reflect-rl.md, L20)."""

from collections import deque
from collections.abc import Iterable

from selfimprove.core.seeds import rng
from selfimprove.methods.reflect_rl.rl_objective import RLTrajectory


class Replay:
    """Keeps the newest ``size`` successes. Draws have no importance weights, as in the original."""

    def __init__(self, size: int, kept: Iterable[RLTrajectory] = ()) -> None:
        self.kept: deque[RLTrajectory] = deque(kept, maxlen=size)

    def add(self, episodes: Iterable[RLTrajectory]) -> None:
        """Add the successful episodes."""
        self.kept.extend(episode for episode in episodes if episode.success)

    def sample(self, count: int, *key: object) -> list[RLTrajectory]:
        """``count`` draws, seeded by ``key``; empty before the first success."""
        return rng("replay", *key).choices(list(self.kept), k=count) if self.kept else []

    def clear(self) -> None:
        """Drop all episodes, at the start of a new level."""
        self.kept.clear()
