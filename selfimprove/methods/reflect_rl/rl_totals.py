"""What all processes of a run learn about an episode, and the run's totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfimprove.methods.reflect_rl.episode import RLEpisode, details, trajectory
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_objective import RLTrajectory


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Summary of an episode that is sent to all processes. ``trajectory`` is None if it was blocked."""

    trajectory: RLTrajectory | None
    cost: float
    success: bool
    read: int
    shortened: int
    cut: int
    unlisted: int
    detail: list[dict[str, Any]]
    error: str = ""


def summary_of(episode: RLEpisode, ids: Mapping[str, int] | None, params: RLParams, *, tell: bool) -> EpisodeSummary:
    """An episode's summary, with its steps for the log if ``tell``. ``ids``: the token id of every label."""
    if episode.status == "blocked":
        return EpisodeSummary(None, episode.cost, False, 0, 0, 0, 0, [], f"{episode.id}: {episode.error}")
    path = trajectory(episode, ids, params.mask_invalid)
    read = sum(len(step.prompt_ids) * (2 if step.reflection else 1) for step in episode.steps)
    detail = details(episode, path.decisions, params.entropy_coef) if tell else []
    shortened, cut = (sum(getattr(step, what) for step in episode.steps) for what in ("shortened", "cut"))
    unlisted = sum(step.unlisted > 0 for step in episode.steps)
    return EpisodeSummary(path, episode.cost, episode.success, read, shortened, cut, unlisted, detail)


@dataclass
class Totals:
    """A run's counts over all iterations and processes, as in ``RLReport``."""

    episodes: int = 0
    decisions: int = 0
    blocked: int = 0
    shortened_prompts: int = 0
    cut_completions: int = 0
    unlisted_actions: int = 0
    rollout_tokens: int = 0

    def add(self, played: Sequence[EpisodeSummary]) -> None:
        """Add an iteration's episodes."""
        self.episodes += len(played)
        self.decisions += sum(len(one.trajectory.decisions) for one in played if one.trajectory)
        self.blocked += sum(one.trajectory is None for one in played)
        self.shortened_prompts += sum(one.shortened for one in played)
        self.cut_completions += sum(one.cut for one in played)
        self.unlisted_actions += sum(one.unlisted for one in played)
        self.rollout_tokens += sum(one.read for one in played)
