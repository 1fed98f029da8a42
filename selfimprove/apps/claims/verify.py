"""Second half of ``make verify``: compares a run's outputs with the published bytes, and tests the claims in this run.

Published bytes belong to one seed and one kind of CPU kernels. Another kind of kernels gives different low-order bits,
which is why claims are based on several kinds.
"""

from collections.abc import Sequence
from pathlib import Path

from selfimprove.apps.claims.claims import difference, holds, verdicts
from selfimprove.apps.claims.published import Published, collected, kernels_of, read_all_published
from selfimprove.apps.report.table import read_summaries
from selfimprove.apps.report.words import method_name
from selfimprove.core.cli import one_sentence


def told(mine: Sequence[Published], runs: Sequence[Published]) -> list[str]:
    """The lines of the report that compares a run's methods with the published runs."""
    if not runs:
        return ["no run is published yet; `make claims` publishes some."]
    return [line for one in mine for line in _of_method(one, [run for run in runs if run["method"] == one["method"]])]


def _of_method(run: Published, runs: Sequence[Published]) -> list[str]:
    name = method_name(run["method"])
    if not runs:
        return [f"{name}: no run is published yet; `make claims` publishes some."]
    runs = [other for other in runs if other["params"] == run["params"]]
    if not runs:
        return [f"{name}: params.yaml differs from that of the published runs, so nothing is compared."]
    lines = [_bytes(run, one) for one in runs if one["seed"] == run["seed"]]
    if not lines:
        lines = [f"no run with seed {run['seed']} is published, so no bytes are compared."]
    found = verdicts(runs)
    made = [verdict.claim for verdict in found if verdict.made]
    held = [claim for claim in made if holds(claim, run)]
    lines.append(f"{len(held)} of the {len(made)} published claims hold in this run.")
    lines = [f"{name}: {line}" for line in lines]
    for verdict in found:
        claim = verdict.claim
        difference_here = difference(claim, run)
        if difference_here is not None:
            shown = f"{difference_here['mean']:+.3f} ± {difference_here['se']:.3f}"
            state = "claimed" if verdict.made else "not claimed"
            lines.append(f"  {claim.text}: {shown} ({state}; in {verdict.held} of {verdict.runs} runs)")
    return lines


def _bytes(run: Published, other: Published) -> str:
    mine, theirs = run["outputs"], other["outputs"]
    shared = [path for path in theirs if path in mine]
    equal = sum(mine[path] == theirs[path] for path in shared)
    apart = "" if run["packages"] == other["packages"] else ", with other package versions"
    return (
        f"{equal} of {len(theirs)} outputs equal the published bytes of seed {other['seed']} on {other['kernels']}"
        f"{apart}; {len(theirs) - len(shared)} do not exist here (kernels of this run: {run['kernels']})."
    )


@one_sentence()
def main() -> None:
    """Print the report. Stages that have run are verified, by the first half, also if no method's report has."""
    if not read_summaries([]):
        print("No method has run to its end here, so nothing is compared with the published runs.")
        return
    print("\n".join(told(collected(Path(), kernels_of(Path())), read_all_published())))


if __name__ == "__main__":
    main()
