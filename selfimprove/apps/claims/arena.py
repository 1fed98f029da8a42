"""Committed arenas, ``results/published/arena/<env>-<kernels>-<seed>.json``, and their tables in docs/arena.md.

``make claims ARGS="--profile arena-textcraft"`` runs an arena for several seeds and publishes each run;
``python -m selfimprove.apps.claims.arena FOLDER`` publishes the run in another folder. ``make docs`` writes the page.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.apps.claims.claims import BEYOND, by_side, shown_runs, side_of
from selfimprove.apps.claims.published import FOLDER, identity, kernels_of, params_digest, pooled, rounded
from selfimprove.apps.report.arena import HEADS, NOTE, Arena, arena, attempts_of, basis, between_of, rows_of
from selfimprove.apps.report.table import read_summaries
from selfimprove.apps.report.words import method_name
from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.pages import between, markdown, prose
from selfimprove.core.publish import write_text
from selfimprove.core.records import read_object
from selfimprove.core.sums import float_sum
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.profiles import composed

ARENAS = FOLDER / "arena"
PAGE = Path("docs/arena.md")
PROFILES = {"textcraft": "arena-textcraft", "encyclopedia": "arena-encyclopedia"}
"""Environment -> the profile whose published runs the page shows."""
MARK = "<!-- arena {}: `make docs` -->\n"
END = "<!-- end of arena -->\n"

PublishedArena = Mapping[str, Any]
"""The content of such a file: the run's identity and its ``Arena``."""


def collected_arena(root: Path, kernels: str) -> dict[str, Any] | None:
    """The identity and comparison of a finished run; None if its methods share no test tasks."""
    found = arena(root, read_summaries(root=root))
    if found is None:
        return None
    params = read_yaml(root / "params.yaml")
    return {**identity(params, kernels), "params": params_digest(params), "arena": rounded(found)}


def publish_arena(run: PublishedArena, folder: Path = ARENAS) -> Path:
    """Write the run's file, replacing one of the same environment, kernels and seed."""
    file = folder / f"{run['arena']['env']}-{run['kernels']}-{run['seed']}.json"
    write_text(file, json.dumps(run, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return file


def read_arenas(env: str, folder: Path = ARENAS) -> list[PublishedArena]:
    """The published runs on an environment, by kernels and seed.

    Raises:
        UserError: the runs have different params.
    """
    runs = [read_object(file) for file in sorted(folder.glob(f"{env}-*.json"))]
    if len({run["params"] for run in runs}) > 1:
        raise UserError(
            f"{folder} contains runs on {env} with different params; delete the old ones and run `make claims`."
        )
    return sorted(runs, key=lambda run: (run["kernels"], run["seed"]))


def pooled_arena(runs: Sequence[PublishedArena]) -> Arena:
    """One comparison from several seeds: estimates are pooled; tokens, episodes and seconds averaged."""
    first: Arena = runs[0]["arena"]
    if len(runs) == 1:
        return first
    return _merged([run["arena"] for run in runs])


def _merged(values: Sequence[Any]) -> Any:
    """{mean, se, n} pooled; other values unchanged if equal, otherwise averaged; None if any value is None."""
    first = values[0]
    if isinstance(first, Mapping) and any(("missing" in value) != ("missing" in first) for value in values):
        raise UserError("arenas that differ in more than their seeds can't be pooled: one lacks a method.")
    if any(value is None for value in values):
        return None
    if isinstance(first, Mapping):
        if "se" in first:
            return pooled(values)
        shared = [key for key in first if all(key in value for value in values)]
        return {key: _merged([value[key] for value in values]) for key in shared}
    if all(value == first for value in values):
        return first
    if isinstance(first, bool | str):
        raise UserError(f"arenas that differ in more than their seeds can't be pooled: {first!r} and others.")
    return float_sum(values) / len(values)


def written_arena(page: str, folder: Path = ARENAS, profiles: Path = Path("profiles")) -> str:
    """The page with the tables of the published runs between its marks.

    Raises:
        UserError: the marks are missing.
    """
    for env, profile in PROFILES.items():
        shown = _shown(read_arenas(env, folder), profile, params_digest(composed(profile, profiles)))
        page = between(page, MARK.format(env), END, f"\n{shown}\n")
    return page


def _shown(runs: Sequence[PublishedArena], profile: str, today: str) -> str:
    """The text and tables for one environment."""
    if not runs:
        return f'No run is published yet: `make claims ARGS="--profile {profile}"` makes them.\n'
    shown = shown_runs(runs)
    found = pooled_arena(shown)
    seeds = ", ".join(str(run["seed"]) for run in shown)
    text = f"{basis(found).capitalize()}; seed{'s' if len(shown) > 1 else ''} {seeds} on {shown[0]['kernels']} kernels"
    text += (
        ", pooled. "
        if len(shown) > 1
        else ". This is one seed; another moves these numbers by as much as the errors say, or more. "
    )
    text += f"{NOTE}."
    if shown[0]["params"] != today:
        text += f" The profile {profile} has changed since; these are the results of the one before."
    missing = [": ".join(row) for row in rows_of(found) if len(row) < len(HEADS)]
    table = markdown(HEADS, [row for row in rows_of(found) if len(row) == len(HEADS)])
    if missing:
        table += "\n" + "".join(f"- {one}\n" for one in missing)
    head, *pairs = between_of(found)
    told = prose(" ".join([*_against_more(found), *_against_others(found), *attempts_of(found)]))
    pairs_table = markdown(head, pairs)
    return f"{prose(text)}\n{table}\nThe last row of a method minus that of another:\n\n{pairs_table}\n{told}"


def _against_more(found: Arena) -> list[str]:
    """Each method's last row compared with more SFT, in words."""
    minus = {
        method: (one["minus"]["more"], one["metric"])
        for method, one in found["methods"].items()
        if "more" in one.get("minus", {})
    }
    sides = by_side({method_name(method): found for method, found in minus.items()})
    return [f"{words} more SFT: {', '.join(names)}." for words, names in sides.items()]


def _against_others(found: Arena) -> list[str]:
    """Which methods' last rows are above those of which others."""
    above: dict[str, list[str]] = {}
    for pair, difference in found["between"].items():
        side = side_of(difference)
        if side:
            one, other = map(method_name, pair.split("-") if side == "above" else reversed(pair.split("-")))
            above.setdefault(one, []).append(other)
    if not above:
        return [f"No two methods are more than {BEYOND} standard errors apart."]
    apart = "; ".join(f"{one} is above {' and '.join(below)}" for one, below in above.items())
    return [f"Of the last rows, by more than {BEYOND} standard errors, {apart}."]


@one_sentence()
def main() -> None:
    """Publish the run in the given folder (default: this one), which must have run on this machine."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    run = collected_arena(root, kernels_of(root))
    if run is None:
        raise UserError(f"{root}: no two methods were tested on the same tasks; `make use PROFILE=arena-textcraft`.")
    print(publish_arena(run))


if __name__ == "__main__":
    main()
