"""The episodes of an evaluation (docs/reflect-rl.md, L46)."""

from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.methods.reflect_rl.params import EvaluateParams


class EvaluationEpisode(NamedTuple):
    """One episode: the ``rep``-th repetition of a task at a level. Its noise is the same for every player."""

    task: int
    level: str
    rep: int

    def key(self, seed: int) -> SeedKey:
        """The episode's seed key."""
        return SeedKey(seed, f"{self.task}-{self.level}-{self.rep}")


def evaluation_episodes(
    env: EnumeratedEnv, split: Sequence[int], cfg: EvaluateParams, reps: int | None = None
) -> list[EvaluationEpisode]:
    """Every task of the split at each of its levels, repeated ``reps`` (default: ``cfg.eval_reps``) times.

    Raises:
        UserError: a level does not exist, or no task of the split is at any of the levels.
    """
    found = [
        EvaluationEpisode(task, level, rep)
        for level in cfg.levels or env.levels
        for task in env.level_tasks(level, split)
        for rep in range(reps or cfg.eval_reps)
    ]
    if not found:
        raise UserError(
            f"reflect_rl.evaluate.levels: the split {cfg.split} has no tasks at level "
            f"{', '.join(cfg.levels or env.levels)}; name other levels or enlarge the split."
        )
    return found
