"""Omissions of a row: blocked episodes, shortened prompts, cut completions, training examples that did not fit.

Every method reports these under the same names in a row's ``generate.json``, ``metrics.json`` and ``train.json``; the
results table shows the nonzero ones.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Estimate, ratio
from selfimprove.core.records import Episode, read_object

OMISSIONS = {
    "blocked": "share of episodes that an engine or the environment failed",
    "shortened_prompts": "share of turns whose prompt left something out (the engine's context, dialogue_limit)",
    "cut_completions": "share of completions that max_tokens ended",
    "degenerate": "share of samples that were dropped: a word more than 150 times, or of more than 300 characters",
    "cramped": "share of episodes that ended since the next round did not fit the context",
    "shortened_judgements": "share of judged steps whose log left out its oldest steps",
    "dropped_revisions": "share of revision trajectories that the judge's engine or the environment failed",
    "unlisted_actions": "share of turns at which there were more actions than labels",
    "shortened_examples": "share of training examples that lost turns or tokens to fit max_length, or were left out",
}
"""Kind -> what is counted."""


def shortened_prompts(episodes: Iterable[Episode], window: int | None = None) -> Estimate:
    """Share of turns whose prompt left out more earlier messages than a context window of ``window`` turns hides."""
    return ratio(
        (sum(turn.omitted > hidden(index, window) for index, turn in enumerate(one.turns)), len(one.turns))
        for one in episodes
    )


def hidden(turn: int, window: int | None) -> int:
    """Number of earlier messages hidden at turn ``turn`` (0-based) by a window that includes the current turn."""
    return 0 if window is None else 2 * max(0, turn - (window - 1))


def cut_completions(episodes: Iterable[Episode]) -> Estimate:
    """Share of samples that reached the token limit."""
    every = ([attempt for turn in one.turns for attempt in turn.attempts] for one in episodes)
    return ratio((sum(attempt.finish == "length" for attempt in drawn), len(drawn)) for drawn in every)


def omissions(folder: Path) -> dict[str, dict[str, float]]:
    """Stage -> kind -> share, for the nonzero omissions of a row.

    Args:
        folder: the row's results: ``metrics.json`` and any of the other stages' files.
    """
    found = {
        "generate": _counted(folder / "generate.json", _shares),
        "convert": _counted(folder / "convert.json", _of_conversion),
        "finetune": _counted(folder / "train.json", _of_training),
        "evaluate": _counted(folder / "metrics.json", _shares),
    }
    return {stage: shares for stage, shares in found.items() if shares}


def _counted(file: Path, count: Callable[[Mapping[str, Any]], dict[str, float]]) -> dict[str, float]:
    if not file.is_file():
        return {}
    try:
        return count(read_object(file))
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{file} has a count that is not a number; restore it, or run `make repro`.") from None


def _shares(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Shares from a metrics file, whose values are estimates or counts of episodes, trees or decisions (Reflect-RL)."""
    played = metrics.get("episodes") or metrics.get("trees") or 1
    shares = {}
    for kind in OMISSIONS:
        value = metrics.get(kind, 0)
        total = played if kind == "blocked" else metrics.get("decisions") or 1
        share = value["mean"] if isinstance(value, dict) else value / total
        if share:
            shares[kind] = float(share)
    return shares


def _of_conversion(metrics: Mapping[str, Any]) -> dict[str, float]:
    failed = metrics.get("dropped_by_judge", 0) + metrics.get("dropped_by_environment", 0)
    shares = _shares({"shortened_judgements": metrics.get("shortened_judgements", 0)})
    return shares | ({"dropped_revisions": failed / metrics["kept_pairs"]} if failed else {})


def _of_training(report: Mapping[str, Any]) -> dict[str, float]:
    """Shares in a training's report, whose counters may count a pair twice (once for each side)."""
    counters = report.get("counters", {})
    left_out, kept = counters.get("dropped_long", 0), counters.get("examples", 0) + counters.get("pairs", 0)
    short = sum(counters.get(key, 0) for key in ("truncated", "truncated_prompts", "truncated_responses"))
    share = (left_out + min(short, kept)) / max(1, left_out + kept)
    return _shares(report) | ({"shortened_examples": share} if share else {})
