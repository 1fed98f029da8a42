"""The metrics of a RISE evaluation (docs/rise.md, R34 and R35).

Per problem there are two episodes: the *sequential* one (several turns of one attempt each, feedback always
"incorrect") and the *parallel* one (a single turn of k independent attempts, the first of them being the sequential
run's first). Every metric is a mean over all problems of the split; a problem that a failed engine left without
attempts counts as wrong.

=============  ====================================================================
m1@t1          the first attempt is right
m5@t1          the majority of 5 independent first attempts is right
p5@t1          any of 5 independent first attempts is right
m1@t5          the majority over the 5 attempts of one run without oracle is right
p1@t5          any of those 5 attempts is right (an oracle would have stopped there)
=============  ====================================================================
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Estimate, Outcome, average, ratio
from selfimprove.core.records import Attempt, Episode, mean_and_error
from selfimprove.methods.omissions import cut_completions, shortened_prompts

Equivalent = Callable[[str, str], bool]


def majority(answers: Sequence[str | None], equivalent: Equivalent) -> int | None:
    """Index of the first member of the largest class of equivalent answers; None when none could be read.

    Unreadable answers (None) have no vote. A tie goes to the class seen first. An answer joins the first class whose
    first member it is equivalent to.
    """
    classes: list[list[int]] = []
    for index, answer in enumerate(answers):
        if answer is None:
            continue
        for members in classes:
            first = answers[members[0]]
            if first is not None and (first == answer or equivalent(first, answer)):
                members.append(index)
                break
        else:
            classes.append([index])
    return max(classes, key=len)[0] if classes else None  # max keeps the first of equals


def majority_right(attempts: Sequence[Attempt], equivalent: Equivalent) -> bool:
    """Whether the majority answer of these attempts is right; no readable answer is wrong."""
    winner = majority([attempt.answer for attempt in attempts], equivalent)
    return winner is not None and attempts[winner].reward == 1


def actions(episode: Episode) -> list[Attempt]:
    """The scored attempts that entered the dialogue, in turn order."""
    return [turn.attempt for turn in episode.turns if turn.attempt.reward is not None]


def outcome(
    sequential: Episode, parallel: Episode, equivalent: Equivalent, *, turns: int, samples: int, oracle: bool = False
) -> Outcome:
    """One problem's values (0 or 1; differences -1 to 1).

    A turn that was not reached counts as wrong, so a run that an engine's failure cut short has no right majority over
    more turns than it played. With ``oracle`` the run stopped at its first right attempt, so a majority over turns is
    not defined and is left out.
    """
    run = actions(sequential)
    first = parallel.turns[0].attempts[:samples] if parallel.turns else []
    values = {"m1@t1": float(bool(run) and run[0].reward == 1)}
    if samples > 1:
        values[f"m{samples}@t1"] = float(majority_right(first, equivalent))
        values[f"p{samples}@t1"] = float(any(attempt.reward == 1 for attempt in first))
    for k in range(2, turns + 1):
        if not oracle:
            values[f"m1@t{k}"] = float(len(run) >= k and majority_right(run[:k], equivalent))
        values[f"p1@t{k}"] = float(any(attempt.reward == 1 for attempt in run[:k]))
    if not oracle:
        for k in range(1, turns + 1):
            values[f"accuracy@t{k}"] = float(len(run) >= k and run[k - 1].reward == 1)
    if turns > 1:
        for name in (f"m1@t{turns}", f"p1@t{turns}"):
            if name in values:
                values[f"{name}-m1@t1"] = values[name] - values["m1@t1"]
        if samples == turns:
            values[f"p1@t{turns}-p{samples}@t1"] = values[f"p1@t{turns}"] - values[f"p{samples}@t1"]
    return Outcome(id=sequential.id, values=values)


def outcomes(
    sequential: Sequence[Episode],
    parallel: Sequence[Episode],
    equivalent: Equivalent,
    *,
    turns: int | None = None,
    samples: int | None = None,
    oracle: bool = False,
) -> list[Outcome]:
    """Every problem's ``outcome``. ``turns``, ``samples``: of a full run (default: of the longest ones seen).

    Raises:
        UserError: the two runs are not over the same problems.
    """
    by_id = {episode.id: episode for episode in parallel}
    if len(by_id) != len(parallel) or sorted(by_id) != sorted(episode.id for episode in sequential):
        raise UserError("evaluate: the sequential and the parallel run cover different problems; run both again.")
    longest = turns or max((len(episode.turns) for episode in sequential), default=1) or 1
    most = samples or max((len(episode.turns[0].attempts) for episode in parallel if episode.turns), default=1)
    return [outcome(one, by_id[one.id], equivalent, turns=longest, samples=most, oracle=oracle) for one in sequential]


def evaluate_metrics(
    sequential: Sequence[Episode],
    parallel: Sequence[Episode],
    equivalent: Equivalent,
    *,
    turns: int | None = None,
    samples: int | None = None,
    oracle: bool = False,
    window: int | None = None,
) -> dict[str, Estimate]:
    """Every metric as {mean, se, n}: the outcomes averaged, and the rates over attempts and over changes of turn.

    ``m1@t1``, ``m5@t1``, ``p5@t1``, ``m1@tk``, ``p1@tk``, ``accuracy@tk`` and the paired gains ``m1@t5-m1@t1``,
    ``p1@t5-m1@t1`` and, where both count as many attempts, ``p1@t5-p5@t1``; ``right_to_wrong``: of the right attempts
    that had a successor, how many were followed by a wrong one; ``wrong_to_right`` likewise; ``unparsable``: of all
    attempts of the sequential run, how many hold no answer; ``blocked``: problems that an engine failed on;
    ``shortened_prompts``: turns of the sequential run whose prompt left out what ``window``, the ``context_window``,
    shows; ``cut_completions``: attempts of both runs that ``max_tokens`` ended.
    """
    metrics = average(outcomes(sequential, parallel, equivalent, turns=turns, samples=samples, oracle=oracle))
    runs = [actions(episode) for episode in sequential]
    metrics["right_to_wrong"] = ratio(_changes(run, was_right=True) for run in runs)
    metrics["wrong_to_right"] = ratio(_changes(run, was_right=False) for run in runs)
    metrics["unparsable"] = ratio((sum(attempt.answer is None for attempt in run), len(run)) for run in runs)
    metrics["blocked"] = mean_and_error(float(episode.status == "blocked") for episode in sequential)
    metrics["shortened_prompts"] = shortened_prompts(sequential, window)
    # The first attempt stands in both runs and counts once.
    later = [run.model_copy(update={"turns": run.turns[1:]}) for run in sequential]
    metrics["cut_completions"] = cut_completions([*later, *parallel])
    return metrics


def by_turn(metrics: Mapping[str, Estimate]) -> list[Estimate]:
    """The metric of each turn, first turn first: the accuracy of that turn's attempt.

    A run with an oracle ends at its first right attempt, so it has no accuracy of later turns; there the metric is the
    share of problems solved by that turn.
    """
    named = "accuracy@t" if "accuracy@t1" in metrics else "p1@t"
    later = [int(name.removeprefix(named)) for name in metrics if re.fullmatch(rf"{named}\d+", name)]
    first = metrics.get("accuracy@t1", metrics["m1@t1"])
    return [first, *(metrics[f"{named}{k}"] for k in sorted(later) if k > 1)]


def accuracy_rows(metrics: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Rows {turn, accuracy, se, majority, any} for the accuracy-by-turn plot; ``accuracy``: see ``by_turn``.

    A run with an oracle has no majority over turns: the cell is empty from the second turn on.
    """
    rows = []
    first = metrics["m1@t1"]
    for k, metric in enumerate(by_turn(metrics), start=1):
        majority = metrics.get(f"m1@t{k}", first if k == 1 else None)
        rows.append(
            {
                "turn": k,
                "accuracy": metric["mean"],
                "se": metric["se"],
                "majority": "" if majority is None else majority["mean"],
                "any": metrics.get(f"p1@t{k}", first)["mean"],
            }
        )
    return rows


def _changes(run: Sequence[Attempt], *, was_right: bool) -> tuple[int, int]:
    """(changes, chances): attempts that were right (or wrong) and had a successor; those whose successor differs."""
    pairs = [(a.reward == 1, b.reward == 1) for a, b in pairwise(run)]
    chances = [after for before, after in pairs if before == was_right]
    return sum(after != was_right for after in chances), len(chances)
