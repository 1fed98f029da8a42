"""The metrics of a RISE evaluation (docs/rise.md, R34 and R35).

Each problem has two episodes: the *sequential* one (several turns of one attempt each, with feedback that is always
"incorrect") and the *parallel* one (a single turn of k independent attempts, the first of which is also the first
attempt of the sequential run). Every metric is a mean over all problems of the split. A problem without attempts,
because an engine failed, counts as wrong.

=============  ====================================================================
m1@t1          the first attempt is correct
m5@t1          the majority of 5 independent first attempts is correct
p5@t1          any of 5 independent first attempts is correct
m1@t5          the majority over the 5 attempts of one run without an oracle is correct
p1@t5          any of those 5 attempts is correct (an oracle would have stopped there)
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
    """Index of the first member of the largest class of equivalent answers; None if no answer could be parsed.

    Unparsable answers (None) do not vote. The class seen first wins ties. An answer joins the first class whose first
    member it is equivalent to.
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
    return max(classes, key=len)[0] if classes else None  # max returns the first of equals


def majority_right(attempts: Sequence[Attempt], equivalent: Equivalent) -> bool:
    """Whether the majority answer of these attempts is correct; False if no answer could be parsed."""
    winner = majority([attempt.answer for attempt in attempts], equivalent)
    return winner is not None and attempts[winner].reward == 1


def actions(episode: Episode) -> list[Attempt]:
    """The scored attempts that entered the dialogue, in turn order."""
    return [turn.attempt for turn in episode.turns if turn.attempt.reward is not None]


def outcome(
    sequential: Episode, parallel: Episode, equivalent: Equivalent, *, turns: int, samples: int, oracle: bool = False
) -> Outcome:
    """Metrics of one problem (0 or 1; differences from -1 to 1).

    A turn that was not reached counts as wrong, so a run cut short by a failed engine has no correct majority over more
    turns than it played. With ``oracle`` the run ended at its first correct attempt, so majorities over turns are
    undefined and left out.
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
    """The ``outcome`` of every problem. ``turns`` and ``samples`` describe a full run (default: the longest ones seen).

    Raises:
        UserError: the two runs cover different problems.
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
    """Every metric as {mean, se, n}: averaged outcomes, and rates over attempts and over transitions between turns.

    ``m1@t1``, ``m5@t1``, ``p5@t1``, ``m1@tk``, ``p1@tk``, ``accuracy@tk`` and the paired gains ``m1@t5-m1@t1``,
    ``p1@t5-m1@t1`` and, if there are as many turns as samples, ``p1@t5-p5@t1``; ``right_to_wrong``: share of correct
    attempts with a successor that were followed by a wrong one; ``wrong_to_right``: likewise; ``unparsable``: share of
    the sequential run's attempts without an answer; ``blocked``: share of problems on which an engine failed;
    ``shortened_prompts``: share of the sequential run's turns whose prompt left out messages that the context window
    ``window`` shows; ``cut_completions``: share of both runs' attempts that reached ``max_tokens``.
    """
    metrics = average(outcomes(sequential, parallel, equivalent, turns=turns, samples=samples, oracle=oracle))
    runs = [actions(episode) for episode in sequential]
    metrics["right_to_wrong"] = ratio(_changes(run, was_right=True) for run in runs)
    metrics["wrong_to_right"] = ratio(_changes(run, was_right=False) for run in runs)
    metrics["unparsable"] = ratio((sum(attempt.answer is None for attempt in run), len(run)) for run in runs)
    metrics["blocked"] = mean_and_error(float(episode.status == "blocked") for episode in sequential)
    metrics["shortened_prompts"] = shortened_prompts(sequential, window)
    # The first attempt is part of both runs but counts once.
    later = [run.model_copy(update={"turns": run.turns[1:]}) for run in sequential]
    metrics["cut_completions"] = cut_completions([*later, *parallel])
    return metrics


def by_turn(metrics: Mapping[str, Estimate]) -> list[Estimate]:
    """The metric of each turn in order: the accuracy of that turn's attempt.

    A run with an oracle ends at its first correct attempt, so later turns have no accuracy. The metric is then the
    share of problems solved by that turn.
    """
    named = "accuracy@t" if "accuracy@t1" in metrics else "p1@t"
    later = [int(name.removeprefix(named)) for name in metrics if re.fullmatch(rf"{named}\d+", name)]
    first = metrics.get("accuracy@t1", metrics["m1@t1"])
    return [first, *(metrics[f"{named}{k}"] for k in sorted(later) if k > 1)]


def accuracy_rows(metrics: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Rows {turn, accuracy, se, majority, any} for the accuracy-by-turn plot; for ``accuracy`` see ``by_turn``.

    A run with an oracle has no majority over turns, so that cell is empty from the second turn on.
    """
    rows = []
    first = metrics["m1@t1"]
    for k, metric in enumerate(by_turn(metrics), start=1):
        majority = metrics.get(f"m1@t{k}")
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
    """(changes, chances): the attempts with a successor that were correct (or wrong), and how many then changed."""
    pairs = [(a.reward == 1, b.reward == 1) for a, b in pairwise(run)]
    chances = [after for before, after in pairs if before == was_right]
    return sum(after != was_right for after in chances), len(chances)
