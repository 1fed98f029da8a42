"""Writes the results into README.md and the methods' pages, from ``results/published/`` (``make docs``).

The text between a page's marks is derived entirely from the committed runs: tables, the sentence on each method, and
which claims are made. A test fails if a page differs.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.apps.claims.arena import PAGE as ARENA_PAGE
from selfimprove.apps.claims.arena import written_arena
from selfimprove.apps.claims.claims import BEYOND, KINDS, SEEDS, Verdict, by_side, shown_runs, verdicts
from selfimprove.apps.claims.published import FOLDER, Published, folder_of, params_digest, pooled, read_published
from selfimprove.apps.report.table import figure_text, signed_text
from selfimprove.apps.report.words import method_name, percent_text, rate_text
from selfimprove.core.cli import one_sentence
from selfimprove.core.outcomes import Estimate
from selfimprove.core.pages import between, markdown, prose
from selfimprove.core.publish import write_text
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.profiles import DEFAULT, composed

BEGIN, END = "<!-- results: `make docs` -->\n", "<!-- end of results -->\n"
PAGES = {
    "README.md": None,
    "docs/rise.md": "rise",
    "docs/agent-r.md": "agent_r",
    "docs/reflect-rl.md": "reflect_rl",
    "docs/spin.md": "spin",
}
"""Page -> the method whose results it shows; None for all methods."""
OF_PROFILE = re.compile(r"<!-- results of ([\w-]+): `make docs` -->\n")
"""Marks the place in a method's page that shows the results of a profile other than the default."""

CHANCE = (
    " A seed's runs on several kinds of kernels are not independent ([what chance lets "
    "through]({}reproducibility.md#what-chance-lets-through))."
)
"""Said of the rule for claims; the folder of the documentation is filled in."""


def written(page: str, method: str | None, folder: Path = FOLDER, profiles: Path = Path("profiles")) -> str:
    """The page with the committed results between its marks: those of the default and of each other marked profile.

    Raises:
        UserError: the default's marks are missing, or the page marks a profile that does not exist.
    """
    for profile in (DEFAULT, *OF_PROFILE.findall(page)):
        runs = read_published(folder_of(profile, folder))
        page = with_results(page, method, runs, digests(profile, profiles), profile)
    return page


def with_results(
    page: str, method: str | None, runs: Sequence[Published], today: Mapping[str, str], profile: str = DEFAULT
) -> str:
    """The page with a profile's results. ``today``: method -> digest of its params in the profile as it is now.

    Raises:
        UserError: the marks are missing.
    """
    begin = BEGIN if profile == DEFAULT else f"<!-- results of {profile}: `make docs` -->\n"
    return between(page, begin, END, f"\n{_results(method, runs, profile, today)}\n")


def _results(method: str | None, published: Sequence[Published], profile: str, today: Mapping[str, str]) -> str:
    asked = METHODS if method is None else (method,)
    by_method = {one: [run for run in published if run["method"] == one] for one in asked}
    runs = {one: found for one, found in by_method.items() if found}
    if not runs:
        command = "make claims" if profile == DEFAULT else f'make claims ARGS="--profile {profile}"'
        name = method_name(method) if method else "any method"
        return f"No run of {name} is published yet: `{command}` makes them.\n"
    shown = {one: shown_runs(found) for one, found in runs.items()}
    parts = [_basis(runs, shown, profile, today), _overview(shown) if method is None else _table(shown[method])]
    parts += [_sentence(one) for one in shown.values()]
    missing = [method_name(one) for one in asked if one not in runs]
    if missing:
        parts.append(f"Of {' and '.join(missing)} no run is published yet.\n")
    omitted = [said for one in shown.values() for said in _omissions(one)]
    if omitted:
        parts.append(prose("Omissions in these runs, largest share of any row: " + "; ".join(omitted) + "."))
    found = verdicts([run for one in runs.values() for run in one])
    parts.append(_claims(found, runs[method]) if method else _made(found))
    return "\n".join(parts)


def _basis(
    runs: Mapping[str, Sequence[Published]],
    shown: Mapping[str, Sequence[Published]],
    profile: str,
    today: Mapping[str, str],
) -> str:
    """The seeds, kernels and package versions of the tables; methods with the same runs are named together."""
    text = "Held-out tasks, mean ± standard error"
    alike: dict[str, list[str]] = {}
    for method, found in shown.items():
        alike.setdefault(_of_runs(found), []).append(method_name(method))
    for of_runs, names in alike.items():
        text += f"; {', '.join(names) + ': ' if len(alike) > 1 else ''}{of_runs}"
    text += f". Δ: the last row minus this one, task by task; * beyond {BEYOND} standard errors."
    alone = [method_name(method) for method, found in runs.items() if len(found) == 1]
    if alone:
        text += f" {'This is' if len(alone) == len(runs) else f'Of {_and(alone)} there is'} one seed on one kind of "
        text += (
            "kernels. Another seed or processor moves these numbers by as much as the errors say, or more, so no claim "
            "rests on them yet."
        )
    changed = [method_name(method) for method, found in shown.items() if found[0]["params"] != today[method]]
    if changed:
        changed_one = f"The default of {_and(changed)}" if profile == DEFAULT else f"The profile {profile}"
        text += f" {changed_one} has changed since; these are the results of the one before."
    return prose(text)


def _of_runs(runs: Sequence[Published]) -> str:
    seeds = ", ".join(str(run["seed"]) for run in runs)
    packages = ", ".join(f"{name} {number}" for name, number in runs[0]["packages"].items())
    text = f"seed{'s' if len(runs) > 1 else ''} {seeds} on {runs[0]['kernels']} kernels ({packages})"
    return f"{text}, pooled over the seeds" if len(runs) > 1 else text


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _overview(shown: Mapping[str, Sequence[Published]]) -> str:
    lines = []
    for method, runs in shown.items():
        first = runs[0]["results"]
        metric = first["headline"]
        for row in first["order"]:
            here = _metric(runs, row, metric)
            cells = [method, metric, _row(first, row), figure_text(here, metric), str(here["n"])]
            lines.append([*cells, _delta(runs, row, metric), _tokens(runs, row)])
    return markdown(["method", "metric", "row", "mean ± se", "n", "Δ (last − row)", "tokens"], lines)


def _table(runs: Sequence[Published]) -> str:
    first = runs[0]["results"]
    columns, gains, rates = first["columns"], first["gains"], first["rates"]
    heads = ["row", *columns, *gains, *rates.values(), *(f"Δ {column}" for column in columns), "tokens"]
    lines = []
    for row in first["order"]:
        cells = [_row(first, row)]
        cells += [figure_text(_metric(runs, row, name), name) for name in columns]
        known = first["rows"][row]["metrics"]
        cells += [signed_text(_metric(runs, row, name), name).strip() if name in known else "-" for name in gains]
        cells += [rate_text(_metric(runs, row, name) if name in known else None) for name in rates]
        cells += [_delta(runs, row, name) for name in columns]
        lines.append([*cells, _tokens(runs, row)])
    rows = "\n".join(f"- {row}: {first['rows'][row]['what']}" for row in first["order"])
    return f"{markdown(heads, lines)}\n{rows}\n"


def _sentence(runs: Sequence[Published]) -> str:
    """The headline metric of the last row compared with every other row, in words."""
    first = runs[0]["results"]
    metric, last = first["headline"], first["last"]
    sides = by_side({row: (_minus(runs, row, metric), metric) for row in first["order"] if row != last})
    value = figure_text(_metric(runs, last, metric), metric)
    said = [f"**{method_name(runs[0]['method'])}**: {metric} of {last} is {value}."]
    said += [f"{words} {', '.join(names)}." for words, names in sides.items()]
    return prose(" ".join(said))


def _omissions(runs: Sequence[Published]) -> list[str]:
    """The kinds of omissions (``methods.omissions``), each with the largest share in any row."""
    largest: dict[tuple[str, str], tuple[float, str]] = {}
    for run in runs:
        for row, value in run["results"]["rows"].items():
            for stage, shares in value["omissions"].items():
                for kind, share in shares.items():
                    if share > largest.get((stage, kind), (0.0, ""))[0]:
                        largest[stage, kind] = (share, row)
    return [
        f"{method_name(runs[0]['method'])}, {stage}: {kind.replace('_', ' ')} {percent_text(share)} ({row})"
        for (stage, kind), (share, row) in largest.items()
    ]


def _claims(found: Sequence[Verdict], runs: Sequence[Published]) -> str:
    kinds = list(dict.fromkeys(run["kernels"] for run in runs))
    rule = (
        "A claim is made only if it holds (the difference is on its side of zero) in every published run and, "
        f"pooled over the seeds, by more than {BEYOND} standard errors on each kind of kernels with at least {SEEDS} "
        f"seeds, of which there must be at least {KINDS}."
    )
    rule += CHANCE.format("") if len(kinds) > 1 else ""
    if rates := sorted({one.claim.metric for one in found} & set(runs[0]["results"]["rates"])):
        rule += f" Rows are paired task by task, but taken for independent in shares of actions ({', '.join(rates)})."
    lines = []
    for one in found:
        cells = [
            signed_text(one.by_kernels[kind], one.claim.metric).strip() if kind in one.by_kernels else ""
            for kind in kinds
        ]
        made = "yes" if one.made else "no"
        lines.append([one.claim.text, *cells, f"{one.held} of {one.runs}", made])
    return f"{prose(rule)}\n{markdown(['claim', *kinds, 'holds in', 'made'], lines)}"


def _made(found: Sequence[Verdict]) -> str:
    """Each method's claims: those that are made, and for the others the number of runs in which they hold."""
    made = sum(one.made for one in found)
    said = prose(
        f"{len(found)} claims are tested with the default; {made} are made: they hold in every run, and by more than "
        f"{BEYOND} standard errors on every kind of kernels that has at least {SEEDS} seeds; at least {KINDS} kinds "
        f"must have them.{CHANCE.format('docs/')} "
        "For each of the others the table gives the number of runs in which the difference is on the claimed side."
    )
    lines = []
    for method in dict.fromkeys(one.claim.method for one in found):
        own = [one for one in found if one.claim.method == method]
        cells = [_by_metric([one for one in own if one.made == which]) for which in (True, False)]
        lines.append([method_name(method), *cells])
    return f"{said}\n{markdown(['method', 'claims made', 'claims not made'], lines)}"


def _by_metric(found: Sequence[Verdict]) -> str:
    """Claims grouped by metric: "score above base, more_sft; …"."""
    rows: dict[str, list[str]] = {}
    for one in found:
        metric, _, row = one.claim.text.rpartition(" ")
        rows.setdefault(metric, []).append(row if one.made else f"{row} ({one.held} of {one.runs})")
    return "; ".join(f"{metric} {', '.join(names)}" for metric, names in rows.items()) or "none"


def _metric(runs: Sequence[Published], row: str, name: str) -> Estimate:
    return pooled([run["results"]["rows"][row]["metrics"][name] for run in runs])


def _minus(runs: Sequence[Published], row: str, name: str) -> Estimate:
    return pooled([run["results"]["last_minus"][row][name] for run in runs])


def _delta(runs: Sequence[Published], row: str, name: str) -> str:
    if row == runs[0]["results"]["last"]:
        return ""
    return signed_text(_minus(runs, row, name), name).strip()


def _tokens(runs: Sequence[Published], row: str) -> str:
    read = [run["results"]["rows"][row]["training_tokens"] for run in runs]
    return f"{sum(read) / len(read) / 1000:.0f}k"


def _row(results: Mapping[str, Any], row: str) -> str:
    return f"{row} (last)" if row == results["last"] else row


def digests(profile: str, profiles: Path = Path("profiles")) -> dict[str, str]:
    """Method -> digest of its params in a profile as it is now."""
    params = composed(profile, profiles)
    return {method: params_digest(params, [method]) for method in METHODS}


@one_sentence()
def main() -> None:
    """Write every page."""
    text = ARENA_PAGE.read_text(encoding="utf-8")
    if (new := written_arena(text)) != text:
        write_text(ARENA_PAGE, new)
    for name, method in PAGES.items():
        page = Path(name)
        text = page.read_text(encoding="utf-8")
        new = written(text, method)
        if new != text:
            write_text(page, new)


if __name__ == "__main__":
    main()
