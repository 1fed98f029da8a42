"""``make compare``: headline metrics and changed params of the workspace, the last commit and its DVC experiments.

    run          rise m1@t5   rise minus more_sft
    ────────────────────────────────────────────
    main         0.696±0.021        -0.016±0.024
    chill-maya   0.702±0.020        -0.010±0.024
    chill-maya: rise.rows.iter2.train.lr: 0.001 → 0.002

Each method has one column for its headline metric with its standard error, and one for the paired difference to a
control. The first row is the commit. A line below the table lists what each other run changed, beginning with the
params in which these runs differ from each other. An experiment of one method also contains the commit's results of the
others. If it changed their params, too, such as the seed, those results are not shown.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rich import box
from rich.table import Table
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.apps.report.table import in_console, show
from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import for_terminal
from selfimprove.core.git import check_commit, git
from selfimprove.core.records import LARGEST
from selfimprove.pipeline.params import PARAMS_FILE
from selfimprove.pipeline.recorded import LOCK, records

Run = tuple[str, dict[str, Any], dict[str, str]]
"""A run's name, its params as a flat mapping, and its cells by column."""
Current = Callable[[str, str, Mapping[str, Any]], bool]
"""Whether, in a revision, the results of a method belong to these params."""

ERROR = " error"
WORKSPACE = "workspace"

MOST_CHANGES = 12
"""How many changed params are listed per run: another profile changes hundreds."""


@one_sentence()
def main() -> None:
    """Print the table; exit with 2 if there is nothing to compare.

    Raises:
        UserError: as ``check_commit``.
    """
    check_commit()
    ask = [sys.executable, "-m", "dvc", "exp", "show", "--json"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        print(f"dvc exp show failed: {said[-1] if said else 'no error message'}", file=sys.stderr)
        sys.exit(2)
    shown = json.loads(done.stdout)
    left_out = list(unreadable(shown))
    print(*left_out, sep="\n", end="\n" if left_out else "", file=sys.stderr)
    runs = list(read_runs(shown, _recorded))
    if not any(cells for _, _, cells in runs):
        if not left_out:
            print("no results yet; run `make repro`, commit dvc.lock, then `make exp SET=…`.", file=sys.stderr)
        sys.exit(2)
    console = in_console()
    show(table_of(runs), console)


def read_runs(shown: list[dict[str, Any]], current: Current) -> Iterator[Run]:
    """The commit, its experiments, and the workspace if it differs from the commit, from ``dvc exp show --json``."""
    workspace, *commits = shown
    listed = [run for commit in commits for run in _with_experiments(commit)]
    if not workspace.get("error") and (
        not listed or (workspace.get("data") or {}).get("metrics") != listed[0][2].get("metrics")
    ):
        listed.append((WORKSPACE, WORKSPACE, workspace.get("data") or {}))
    for name, revision, data in listed:
        files = {path: _mapping(file.get("data")) for path, file in (data.get("params") or {}).items()}
        params = {key: value for file in files.values() for key, value in flat(file)}
        cells: dict[str, str] = {}
        for file in (data.get("metrics") or {}).values():
            for method, metrics in _mapping(file.get("data")).items():
                if current(revision, method, files.get(str(PARAMS_FILE), {})):
                    cells |= cells_of(method, _mapping(metrics))
        yield name, params, cells


def unreadable(shown: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each revision that DVC could not read, which is left out, for example because the disk is full."""
    for commit in shown:
        for one in (commit, *_latest(commit)):
            if one.get("error"):
                reason = " ".join(str(_mapping(one["error"]).get("msg")).split()).rstrip(".")
                yield for_terminal(f"{_named(one)} is left out: DVC cannot read it ({reason}).")


def _recorded(revision: str, method: str, params: Mapping[str, Any]) -> bool:
    """Whether dvc.lock in this revision records the method's stages with its params."""
    return records(_lock(revision), method, params)


@cache
def _lock(revision: str) -> Any:
    """dvc.lock, with text for every key, as in the JSON of ``dvc exp show``; None if there is none that can be read."""
    try:
        text = LOCK.read_text(encoding="utf-8") if revision == WORKSPACE else git("show", f"{revision}:{LOCK}")[1]
        return json.loads(json.dumps(YAML(typ="safe").load(text)))
    except (OSError, YAMLError, ValueError, TypeError, RecursionError):
        return None


def cells_of(method: str, metrics: Mapping[str, float]) -> dict[str, str]:
    """Column heading -> mean ± error of a method's headline metrics."""
    cells = {}
    for name, value in metrics.items():
        error = metrics.get(f"{name}{ERROR}", 0.0)
        numbers = all(isinstance(one, int | float) and abs(one) <= LARGEST for one in (value, error))
        if numbers and not name.endswith(ERROR):
            digits = 1 if max(abs(value), error) > 1.5 else 3
            sign = "+" if name.startswith("minus ") and value >= 0 else ""
            cells[f"{method} {name}"] = f"{sign}{value:.{digits}f}±{error:.{digits}f}"
    return cells


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping in place of anything else: a damaged file of one run hides no other run."""
    return value if isinstance(value, Mapping) else {}


def changes(
    params: Mapping[str, Any], reference: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """The params that differ from the reference's, one line each; first those that also differ from the others'."""
    keys = [key for key in {**reference, **params} if params.get(key) != reference.get(key)]
    keys.sort(key=lambda key: (all(params.get(key) == other.get(key) for other in others), key))
    return [for_terminal(f"{key}: {_said(reference, key)} → {_said(params, key)}") for key in keys]


def flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def table_of(runs: list[Run]) -> Table:
    """The runs, one per row; params are compared with those of the first."""
    columns = list(dict.fromkeys(heading for _, _, cells in runs for heading in cells))
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    reference, others = runs[0][1], [params for _, params, _ in runs[1:]]
    notes = []
    for name, params, cells in runs:
        table.add_row(name, *(cells.get(heading, "-") for heading in columns))
        changed = changes(params, reference, others)
        if (more := len(changed) - MOST_CHANGES) > 0:
            changed[MOST_CHANGES:] = [f"and {more} more (see `dvc params diff`)"]
        notes += [f"{name}: {'; '.join(changed)}"] if changed else []
    table.caption = "\n".join(["mean ± standard error; minus: the last row minus that row, paired by task", *notes])
    return table


def _with_experiments(commit: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, revision and data of the commit and of each of its experiments that DVC could read."""
    for one in (commit, *_latest(commit)):
        if not one.get("error"):
            yield _named(one), str(one["rev"]), one.get("data") or {}


def _latest(commit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest revision of each experiment of a commit."""
    return [one for experiment in commit.get("experiments") or [] for one in (experiment.get("revs") or [])[:1]]


def _named(revision: Mapping[str, Any]) -> str:
    rev = str(revision["rev"])
    return str(revision.get("name") or (rev if rev == WORKSPACE else rev[:7]))


def _said(params: Mapping[str, Any], key: str) -> str:
    return json.dumps(params[key], ensure_ascii=True) if key in params else "none"


if __name__ == "__main__":
    main()
