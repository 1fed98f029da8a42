"""The claims that the default profile is designed to show, and which of them the published runs support.

A claim is a paired difference above zero (below zero if lower is better): of a method's last row to another row, or of
a row's metric to its own first turn. A claim *holds* in a run if the difference is on that side of zero. It is *made*
only if it holds in every published run, and if the difference pooled over the seeds exceeds three standard errors on
each kind of CPU kernels with at least ``SEEDS`` seeds; there must be at least ``KINDS`` such kinds. Shares of actions
are not paired, because two rows act in different states: the error of their difference treats the rows as independent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from selfimprove.apps.claims.published import Published, pooled
from selfimprove.apps.report.words import signed_text
from selfimprove.core.outcomes import BEYOND, Estimate, beyond, unpaired_difference

SEEDS = 3
KINDS = 2


class Claim(NamedTuple):
    """``row``: the other row; None if ``metric`` is a difference within the last row. ``fewer``: less is better."""

    method: str
    metric: str
    row: str | None
    fewer: bool = False

    @property
    def text(self) -> str:
        """The claim in words."""
        side = "below" if self.fewer else "above"
        return f"{self.metric} {side} {'0' if self.row is None else self.row}"

    def gain(self, difference: Estimate) -> float:
        """The difference, signed so that positive is better."""
        return -difference["mean"] if self.fewer else difference["mean"]


CLAIMS = (
    *(Claim("rise", "m1@t5", row) for row in ("base", "more_sft", "single_turn", "unweighted")),
    Claim("rise", "m1@t5-m1@t1", None),
    *(Claim("rise", "m1@t5-m1@t1", row) for row in ("base", "more_sft", "single_turn")),
    Claim("rise", "p1@t5-p5@t1", None),
    *(Claim("agent_r", "score", row) for row in ("base", "more_sft", "good_only", "direct")),
    *(Claim("agent_r", "revision_score", row) for row in ("base", "more_sft", "good_only", "direct")),
    *(Claim("agent_r", "invalid_actions", row, fewer=True) for row in ("base", "more_sft", "good_only", "direct")),
    *(Claim("agent_r", "repeated", row, fewer=True) for row in ("base", "more_sft", "good_only", "direct")),
    *(
        Claim("reflect_rl", "success", row)
        for row in ("policy", "more_sft", "no_reflection", "no_negatives", "no_curriculum")
    ),
    *(Claim("spin", "em", row) for row in ("base", "more_sft")),
    Claim("spin", "told_apart_fall", None),
)


class Verdict(NamedTuple):
    """A claim, its difference on each kind of kernels (pooled over seeds), and the number of runs in which it holds."""

    claim: Claim
    by_kernels: dict[str, Estimate]
    held: int
    runs: int
    made: bool


def difference(claim: Claim, run: Published) -> Estimate | None:
    """The claim's difference in a run of its method; None if the run lacks the row or metric."""
    results = run["results"]
    rows, last = results["rows"], results["rows"][results["last"]]["metrics"]
    if claim.metric in results["rates"] and claim.row in rows:
        return unpaired_difference(last[claim.metric], rows[claim.row]["metrics"][claim.metric])
    place = last if claim.row is None else results["last_minus"].get(claim.row, {})
    return place.get(claim.metric)


def holds(claim: Claim, run: Published) -> bool | None:
    """Whether the difference is on the better side in this run; None if the run lacks the row or metric."""
    found = difference(claim, run)
    return None if found is None else claim.gain(found) > 0


def verdicts(runs: Sequence[Published], claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """The verdict on every claim whose rows exist in any run."""
    return [verdict for claim in claims if (verdict := _verdict(claim, runs)) is not None]


def _verdict(claim: Claim, runs: Sequence[Published]) -> Verdict | None:
    own = [run for run in runs if run["method"] == claim.method]
    measured = [(run["kernels"], found) for run in own if (found := difference(claim, run)) is not None]
    if not measured:
        return None
    kinds = {kind: [one for other, one in measured if other == kind] for kind, _ in measured}
    by_kernels = {kind: pooled(estimates) for kind, estimates in kinds.items()}
    held = sum(claim.gain(one) > 0 for _, one in measured)
    enough = [by_kernels[kind] for kind, estimates in kinds.items() if len(estimates) >= SEEDS]
    sure = all(claim.gain(one) > 0 and beyond(one) for one in enough)
    made = held == len(own) and len(enough) >= KINDS and sure
    return Verdict(claim, by_kernels, held, len(own), made)


Run = TypeVar("Run", bound=Mapping[str, Any])


def shown_runs(runs: Sequence[Run]) -> list[Run]:
    """The published runs of a method or an arena that tables show.

    These are all seeds of the kind of kernels with the most seeds; in a tie, avx2 is preferred.
    """
    order = ["avx2", "default", "avx512"]
    kinds = {run["kernels"]: [one for one in runs if one["kernels"] == run["kernels"]] for run in runs}
    best = max(kinds, key=lambda kind: (len(kinds[kind]), -order.index(kind) if kind in order else -9))
    return kinds[best]


def side_of(difference: Mapping[str, float]) -> str:
    """The side of zero on which a difference lies; "" if it is not ``beyond`` its error."""
    if not beyond(difference):
        return ""
    return "above" if difference["mean"] > 0 else "below"


def by_side(differences: Mapping[str, tuple[Estimate, str]]) -> dict[str, list[str]]:
    """Group names by side of their (difference, metric): "More than 3 standard errors above" -> names, and so on."""
    words = {
        "above": f"More than {BEYOND} standard errors above",
        "below": f"More than {BEYOND} standard errors below",
        "": f"Within {BEYOND} standard errors of",
    }
    found: dict[str, list[str]] = {text: [] for text in words.values()}
    for name, (difference, metric) in differences.items():
        found[words[side_of(difference)]].append(f"{name} ({signed_text(difference, metric).strip(' *')})")
    return {text: names for text, names in found.items() if names}
