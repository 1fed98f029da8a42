"""Comparison of a run with other runs: another clone's folder, a commit or a DVC experiment.

Commits and experiments are read from their ``dvc.lock`` and DVC's cache; nothing is checked out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.apps.page import provenance
from selfimprove.apps.page.run import Run
from selfimprove.apps.page.tables import Plain
from selfimprove.apps.report.charts import own_rows
from selfimprove.apps.report.table import figure_text, signed_text
from selfimprove.apps.report.words import method_name, metric_name, row_name
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Estimate, Outcome, average, paired_difference, unpaired_difference
from selfimprove.methods.summary import headline
from selfimprove.pipeline.verify import cache_of, outputs_of

EXPERIMENTS = "refs/exps"
MOST = 8
"""Maximum number of experiments compared by default, newest first."""


class Other:
    """Another run to compare with."""

    def __init__(self, run: Run, name: str, about: str, params: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        self._run, self.name, self.about, self.params, self._files = run, name, about, params, files

    @property
    def is_here(self) -> bool:
        """Whether any of its results can be read; a clone that has not run the default lacks the committed ones."""
        return bool(self._files)

    def outcomes(self, method: str, row: str) -> list[Outcome]:
        """The row's outcome for each task; [] if the other run does not have the row."""
        path = self._files.get(f"results/{method}/{row}/outcomes.jsonl")
        return read_outcomes(self._run, path) if path else []


def read_outcomes(run: Run, path: Path) -> list[Outcome]:
    """The outcomes in a file; invalid lines are skipped and reported."""
    return [outcome for _, _, outcome in run.records(path, "an outcome", Outcome.model_validate)]


def others(run: Run, named: Sequence[str]) -> list[Other]:
    """The named runs. By default: the last commit, if its results are in DVC's cache and differ, and its experiments.

    Raises:
        UserError: a name is neither a run's folder nor a commit or experiment with a ``dvc.lock``.
    """
    if named:
        return [_named(run, name) for name in named]
    found = []
    lock = run.root / "dvc.lock"
    committed = _of_revision(run, "HEAD", "the last commit")
    if (
        committed
        and committed.is_here
        and lock.is_file()
        and _lock_of(run, "HEAD") != lock.read_text(encoding="utf-8", errors="replace")
    ):
        found.append(committed)
    head = provenance.git(run, "rev-parse", "HEAD")
    of_head = f"{EXPERIMENTS}/{head[:2]}/{head[2:]}"  # DVC's name for a commit's experiments
    listed = provenance.git(run, "for-each-ref", "--sort=-creatordate", "--format=%(refname)", of_head).splitlines()
    for reference in listed:
        if len(found) < MOST:
            other = _of_revision(run, reference, reference.rpartition("/")[2])
            found += [other] if other else []
    return found


def _named(run: Run, name: str) -> Other:
    folder = Path(name)
    if (folder / "results").is_dir():
        there = Run(folder)
        files = {str(path.relative_to(folder)): path for path in (folder / "results").glob("*/*/outcomes.jsonl")}
        return Other(run, name, f"Run in the folder {name}.", there.params, files)
    listed = provenance.git(run, "for-each-ref", "--format=%(refname)", EXPERIMENTS).splitlines()
    revision = next((one for one in listed if one.endswith(f"/{name}")), name)
    found = None if revision.startswith("-") else _of_revision(run, revision, name)
    if found is None:
        raise UserError(
            f"COMPARE: {name!r} is neither the folder of a run nor a commit or experiment with a dvc.lock; "
            "`dvc exp list` and `git log -- dvc.lock` list candidates."
        )
    return found


def _lock_of(run: Run, revision: str) -> str:
    text = provenance.git(run, "show", f"{revision}:dvc.lock")
    return f"{text}\n" if text else ""


def _of_revision(run: Run, revision: str, name: str) -> Other | None:
    text = _lock_of(run, revision)
    if not text:
        return None
    try:
        outs = outputs_of(YAML(typ="safe").load(text))
        params = YAML(typ="safe", pure=True).load(provenance.git(run, "show", f"{revision}:params.yaml"))
    except (YAMLError, ValueError, RecursionError):
        return None
    try:
        cache = cache_of(run.root)
    except UserError as error:
        run.tell(str(error))
        return None
    files = {str(out.path): cache / out.md5[:2] / out.md5[2:] for out in outs}
    there = {path: file for path, file in files.items() if path.endswith("outcomes.jsonl") and file.is_file()}
    about = provenance.git(run, "log", "-1", "--format=%h, %cs: %s", revision)
    missing = sum(path.endswith("outcomes.jsonl") for path in files) - len(there)
    more = f" DVC's cache lacks the results of {missing} rows; `make fetch RUNS=all` may get them." if missing else ""
    return Other(run, name, f"{about}.{more}", params if isinstance(params, dict) else {}, there)


def shown(run: Run, other: Other) -> dict[str, Any]:
    """A section of the page: differing params, metrics with paired errors, and tasks whose headline metric changed."""
    tables, changes = [], []
    for method, summary in run.summaries.items():
        metric = headline(summary)
        rows = []
        for row in summary["order"]:
            mine = read_outcomes(run, run.root / "results" / method / row / "outcomes.jsonl")
            theirs = other.outcomes(method, row)
            if not mine or not theirs:
                continue
            gains, apart = _differences(mine, theirs)
            measured = [average(side) for side in (theirs, mine)]
            columns = [name for name in summary["columns"] if name in gains]
            if not columns:
                continue
            cells = [
                text for name in columns
                for text in (*(figure_text(one[name], name) for one in measured), signed_text(gains[name], name))
            ]  # fmt: skip
            unpaired = [metric_name(name) for name in columns if name in apart]
            paired = "yes" if not unpaired else f"not {', '.join(unpaired)}" if len(unpaired) < len(columns) else "no"
            rows.append((row, columns, [row_name(method, row), *cells, paired]))
            change = _changed(method, row, metric, mine, theirs)
            if change["up"] or change["down"]:
                changes.append(change)
        if rows:
            tables.append(_table(method, summary, rows))
    return {
        "name": other.name, "about": other.about, "tables": tables, "changes": changes,
        "params": provenance.differing(other.params, run.params),
    }  # fmt: skip


def _table(method: str, summary: Mapping[str, Any], rows: Sequence[tuple[str, list[str], list[str]]]) -> Plain:
    columns = rows[0][1]
    kept = [(row, cells) for row, found, cells in rows if found == columns]
    others = [row_name(method, row) for row, found, _ in rows if found != columns]
    head = [("row", False)]
    for name in columns:
        head += [(f"{metric_name(name)}:\nother run", True), ("this run", True), ("difference", True)]
    own = [row in own_rows(method, summary) for row, _ in kept]
    notes = [
        "difference: this run minus the other, ± standard error; *: more than three standard errors from 0",
        "paired: metrics whose tasks are the same in both runs are compared task by task (yes: all; not X: all but X)",
    ]
    if others:
        notes.append(f"not shown, since the two runs share other metrics of them: {', '.join(others)}")
    title = f"{method_name(method)}: this run and the other run"
    return Plain(title, [*head, ("paired", False)], [cells for _, cells in kept], own, notes)


def _differences(mine: Sequence[Outcome], theirs: Sequence[Outcome]) -> tuple[dict[str, Estimate], set[str]]:
    """Each metric's difference, this run minus the other, and the metrics that are not paired, over different tasks."""
    here, there = average(mine), average(theirs)
    gains: dict[str, Estimate] = {}
    apart = set()
    for name in here:
        if name not in there:
            continue
        sides = [{one.id: one.values[name] for one in side if name in one.values} for side in (mine, theirs)]
        try:
            gains[name] = paired_difference(*sides)
        except UserError:
            apart.add(name)
            gains[name] = unpaired_difference(here[name], there[name])
    return gains, apart


def _changed(method: str, row: str, metric: str, mine: Sequence[Outcome], theirs: Sequence[Outcome]) -> dict[str, Any]:
    """The tasks whose headline metric differs."""
    before = {one.id: one.values[metric] for one in theirs if metric in one.values}
    sides: dict[str, list[dict[str, str]]] = {"up": [], "down": []}
    for one in mine:
        now, old = one.values.get(metric), before.get(one.id)
        if now is None or old is None or now == old:
            continue
        link = f"episodes.html#method={method}&set={row}/evaluation&q={quote(one.id, safe='')}"
        task = {"id": one.id, "before": f"{old:g}", "after": f"{now:g}", "link": link}
        sides["up" if now > old else "down"].append(task)
    name = row_name(method, row)
    of = "" if name.startswith(method_name(method)) else f"{method_name(method)}, "
    return {"title": f"{of}{name}: {metric_name(metric)}", **sides}
