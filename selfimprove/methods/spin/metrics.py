"""SPIN's metrics of evaluation and self-play (docs/spin.md, S40).

============  =========================================================================================================
em            exact match after the task's normaliser: a share; an episode that never finished has 0
f1            overlap of words, in [0, 1]
reward        the task's own rule: em for HotpotQA, the first word or letter for StrategyQA and MMLU
steps         rounds of an episode
finished      share of episodes that the policy ended with ``finish``
invalid       share of rounds without an existing action
failed        share of episodes with a round in which no reply had an action
cramped       share of episodes that did not fit the engine's context
cut_completions  share of rounds whose reply reached ``max_tokens``
============  =========================================================================================================

Every mean is over all configured questions, including blocked episodes. The original's files lack unfinished episodes,
which raises the scores (one of them has 465 of 500 questions).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from selfimprove.core.outcomes import Outcome, average, ratio
from selfimprove.core.records import mean_and_error
from selfimprove.methods.spin.play import PlayedRound, SpinEpisode


def is_invalid(entry: PlayedRound) -> bool:
    """Whether a round had no existing action."""
    return entry.tool is None or entry.failed


def outcome(episode: SpinEpisode) -> Outcome:
    """One question's values of the averaged metrics; ``em``, ``f1`` and ``reward`` are omitted if it was not scored."""
    scores = {} if episode.reward is None else {"em": float(episode.em), "f1": episode.f1, "reward": episode.reward}
    values = {
        **scores,
        "steps": float(len(episode.rounds)),
        "finished": float(episode.finished),
        "failed": float(any(entry.failed for entry in episode.rounds)),
        "cramped": float(episode.cramped),
        "blocked": float(episode.status == "blocked"),
    }
    return Outcome(id=episode.id, values=values)


def outcomes(episodes: Iterable[SpinEpisode]) -> list[Outcome]:
    """Every question's outcome, for paired tests."""
    return [outcome(episode) for episode in episodes]


def evaluate_metrics(episodes: Sequence[SpinEpisode]) -> dict[str, Any]:
    """Every metric as {mean, se, n}; ``kinds``: exact match by kind of question, if the data set has kinds."""
    metrics: dict[str, Any] = dict(average(outcomes(episodes)))
    metrics["invalid"] = ratio((sum(map(is_invalid, one.rounds)), len(one.rounds)) for one in episodes)
    metrics["attempts"] = mean_and_error(float(entry.attempts) for one in episodes for entry in one.rounds)
    metrics["cut_completions"] = ratio((sum(entry.cut for entry in one.rounds), len(one.rounds)) for one in episodes)
    metrics["actions"] = actions(episodes)
    kinds = sorted({one.kind for one in episodes})
    if len(kinds) > 1 and "em" in metrics:
        metrics["kinds"] = {
            kind: mean_and_error(float(one.em) for one in episodes if one.kind == kind) for kind in kinds
        }
    return metrics


def tool_figures(stats: Mapping[str, int], faults: Mapping[str, int]) -> dict[str, Any]:
    """The tools' counters, sorted so that their order does not depend on the order of calls."""
    return {"tools": dict(sorted(stats.items())), "tool_faults": dict(sorted(faults.items()))}


def actions(episodes: Sequence[SpinEpisode]) -> dict[str, int]:
    """Number of calls of each tool; "" counts invalid actions."""
    return dict(sorted(Counter(entry.tool or "" for one in episodes for entry in one.rounds).items()))
