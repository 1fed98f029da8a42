"""Reflect-RL's metrics: success and cost of a policy that plays each task several times (docs/reflect-rl.md, L46).

===========  ========================================================================================================
success      share of successful episodes, as judged by the environment (L32, L40, L42)
cost         mean of an episode's total cost, Q₀ without entropies
steps        actions of an episode
invalid      share of actions whose label was not listed or which could not be executed
blocked      share of episodes in which an engine or the environment failed permanently; they count as failed
shortened_prompts  share of steps at which the policy's or the reflector's prompt was cut on the left
cut_completions    share of steps whose reflection reached ``max_tokens``
unlisted_actions   share of steps with more actions than labels; present only if there are any
levels       success, cost and the number of episodes at each level
===========  ========================================================================================================

The original reports means only. Episodes of the same task are not independent, so standard errors here are over tasks:
a task's mean over its episodes is one observation. ``n`` counts tasks and ``episodes`` counts episodes.
"""

import math
from collections.abc import Sequence
from typing import Any

from selfimprove.core.outcomes import Estimate, Outcome, ratio
from selfimprove.core.records import mean_and_error
from selfimprove.methods.reflect_rl.episode import RLEpisode


def total_cost(episode: RLEpisode) -> float:
    """The sum of c over the steps, rounded once.

    ``RLEpisode.cost``, in logs and curves, rounds after each step, so that their last digits differ in DangerousTaxi;
    published bytes have both.
    """
    return math.fsum(step.cost for step in episode.steps)


def outcomes(env: str, episodes: Sequence[RLEpisode]) -> list[Outcome]:
    """One outcome per task over all its episodes, and also by level if there are several, for paired differences.

    Tasks are in the order in which they first occur.
    """
    levels = list(dict.fromkeys(episode.level for episode in episodes))
    found = []
    for task, mine in _by_task(episodes).items():
        values = _values(mine)
        if len(levels) > 1:
            for level in levels:
                here = [episode for episode in mine if episode.level == level]
                if here:
                    values |= {f"{key}_{level}": value for key, value in _values(here).items()}
        found.append(Outcome(id=f"{env}-{task}", values=values))
    return found


def _values(episodes: Sequence[RLEpisode]) -> dict[str, float]:
    n = len(episodes)
    return {
        "success": sum(episode.success for episode in episodes) / n,
        "cost": math.fsum(map(total_cost, episodes)) / n,
        "steps": sum(len(episode.steps) for episode in episodes) / n,
    }


def evaluate_metrics(episodes: Sequence[RLEpisode]) -> dict[str, Any]:
    """Every metric as {mean, se, n}; see the module's docstring."""
    steps = [[step for one in mine for step in one.steps] for mine in _by_task(episodes).values()]
    metrics: dict[str, Any] = {name: _clustered(episodes, name) for name in ("success", "cost", "steps")}
    metrics["invalid"] = ratio((sum(not step.valid for step in mine), len(mine)) for mine in steps)
    metrics["blocked"] = mean_and_error(
        sum(episode.status == "blocked" for episode in mine) / len(mine) for mine in _by_task(episodes).values()
    )
    metrics["shortened_prompts"] = ratio((sum(step.shortened for step in mine), len(mine)) for mine in steps)
    metrics["cut_completions"] = ratio((sum(step.cut for step in mine), len(mine)) for mine in steps)
    if any(step.unlisted for mine in steps for step in mine):
        metrics["unlisted_actions"] = ratio((sum(step.unlisted > 0 for step in mine), len(mine)) for mine in steps)
    metrics["episodes"] = len(episodes)
    metrics["levels"] = {
        level: {**{name: _clustered(here, name) for name in ("success", "cost")}, "episodes": len(here)}
        for level in dict.fromkeys(episode.level for episode in episodes)
        if (here := [episode for episode in episodes if episode.level == level])
    }
    return metrics


def _clustered(episodes: Sequence[RLEpisode], name: str) -> Estimate:
    return mean_and_error(_values(mine)[name] for mine in _by_task(episodes).values())


def _by_task(episodes: Sequence[RLEpisode]) -> dict[int, list[RLEpisode]]:
    """Task -> its episodes, in the order in which tasks first occur."""
    groups: dict[int, list[RLEpisode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task_id, []).append(episode)
    return groups
