"""Reads the files of a run for the page; a missing or damaged file is never an error.

A run is a folder with ``params.yaml``, ``results/``, ``data/`` and, if DVC ran it, ``dvc.lock``. Damaged files are
skipped and reported in ``Run.problems``; in a JSONL file only the damaged lines, with file name and line number.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from selfimprove.apps.page.lines import Task
from selfimprove.apps.report.schema import Metrics, Trained
from selfimprove.apps.report.table import differ, read_summaries
from selfimprove.core.errors import UserError, fault, first_line
from selfimprove.core.outcomes import Outcome
from selfimprove.core.records import load_json, only_regular, parse_row
from selfimprove.core.yaml import read_yaml
from selfimprove.methods.rows import NONE, START
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import SUMMARIES

SPLITS = ("train", "dev", "test")

REMEDY = "restore the file, or run `make repro`"

T = TypeVar("T")

COLUMNS = 7
"""Maximum number of metrics shown for a method that has no summary yet."""


def run_folder(folder: Path) -> Path:
    """The folder itself.

    Raises:
        UserError: it is missing, or contains neither ``params.yaml`` nor ``results/``.
    """
    if not folder.is_dir():
        raise UserError(f"--run {folder}: there is no such folder; pass the folder of a run.")
    if not (folder / "params.yaml").exists() and not (folder / "results").is_dir():
        raise UserError(f"--run {folder}: the folder contains neither params.yaml nor results/; pass that of a run.")
    return folder


class Run:
    """The files of a run. ``problems`` is filled while they are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []

    @cached_property
    def params(self) -> dict[str, Any]:
        """``params.yaml``; {} if it is missing or unreadable."""
        path = self.root / "params.yaml"
        try:
            return read_yaml(path) if path.exists() else {}
        except (OSError, UserError) as error:
            self.tell_of(path, error)
            return {}

    @cached_property
    def methods(self) -> list[str]:
        """The methods that have results, in the order of ``METHODS``."""
        return [name for name in METHODS if (self.root / "results" / name).is_dir()]

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Method -> the summary of its report stage; without one of the present results, a partial summary of the rows
        measured so far."""
        found = {}
        for method in self.methods:
            try:
                whole = read_summaries([method], self.root)
            except (OSError, UserError) as error:
                self.tell_of(self.root / SUMMARIES / f"{method}.json", error)
                whole = {}
            summary = whole.get(method)
            found[method] = summary if summary and self._is_current(method, summary) else self._partial(method)
        return found

    def run_param(self, key: str) -> Any:
        """A value of the section ``run``; None if it is missing."""
        section = self.params.get("run")
        return section.get(key) if isinstance(section, dict) else None

    def _is_current(self, method: str, summary: dict[str, Any]) -> bool:
        """Whether a summary has its rows' metrics as they are now: a rerun replaces them before the summary."""
        for path in (self.root / "results" / method).glob("*/metrics.json"):
            known = summary["rows"].get(path.parent.name, {}).get("metrics")
            if known and differ(known, self.json(path, Metrics)):
                return False
        return True

    def _partial(self, method: str) -> dict[str, Any]:
        """A summary of the measured rows, without differences and without a last row."""
        rows: dict[str, Any] = {}
        columns: list[str] = []
        figures: dict[str, set[str]] = {}
        for name in self.rows(method):
            folder = self.root / "results" / method / name
            metrics = self.json(folder / "metrics.json", Metrics)
            if not metrics:
                continue
            figures[name] = Metrics.model_validate(metrics).figures
            trained = self.json(folder / "train.json", Trained)
            first = next(self.records(folder / "outcomes.jsonl", "an outcome", Outcome.model_validate), None)
            columns = columns or [key for key in (first[1]["values"] if first else ()) if key in figures[name]]
            rows[name] = {"what": "", "metrics": metrics, "training_tokens": trained.get("real_tokens", 0)}
        columns = columns[:COLUMNS]
        for name in [name for name in rows if not figures[name].issuperset(columns)]:
            del rows[name]
            self.tell(
                f"results/{method}/{name}/metrics.json has no estimate of {', '.join(columns)}, unlike other rows; "
                f"{REMEDY}."
            )
        return {
            "partial": True, "columns": columns, "gains": [], "rates": {}, "note": "", "order": list(rows),
            "solid": [], "rows": rows, "last": None, "last_minus": {}, "curves": [],
        }  # fmt: skip

    def rows(self, method: str) -> list[str]:
        """The row folders of a method: first the rows of its summary in table order, then others that have files."""
        summary = self.__dict__.get("summaries", {}).get(method) or {}
        found = {path.name for path in (self.root / "results" / method).glob("*") if path.is_dir()}
        found |= {path.parent.name for path in (self.root / "data" / method).glob("*/train")}
        found -= {START, NONE}  # not rows: a method's start, and the placeholder for a row's name
        order = [name for name in summary.get("order", []) if name in found]
        return order + sorted(found - set(order), key=_base_first)

    @cached_property
    def splits(self) -> dict[str, dict[str, str]]:
        """Method -> task id -> its split."""
        found: dict[str, dict[str, str]] = {}
        for method in self.methods:
            named = found[method] = {}
            for split in SPLITS:
                path = self.root / "data" / method / "tasks" / f"{split}.jsonl"
                for _, row, _ in self.records(path, "a task", Task.model_validate):
                    named[str(row.get("id") or f"{row.get('env')}-{row.get('task_id')}")] = split
        return found

    def json(self, path: Path, kind: type[BaseModel]) -> dict[str, Any]:
        """A JSON object of a kind; {} if the file is missing, or damaged, which is reported."""
        if not path.exists():
            return {}
        try:
            value: dict[str, Any] = load_json(path)
            kind.model_validate(value)
        except (UserError, ValidationError) as error:
            self.tell_of(path, error)
            return {}
        return value

    def records(
        self, path: Path, what: str, check: Callable[[Mapping[str, Any]], T]
    ) -> Iterator[tuple[int, dict[str, Any], T]]:
        """(line number, object, result of ``check``) of a JSONL file.

        Damaged lines and those for which ``check`` raises ValueError are skipped and reported: they are not ``what``.
        """
        for number, line in self.lines(path):
            try:
                checked = check(line)
            except ValueError as error:
                self.tell(f"{self.name(path)}, line {number}: not {what} ({_reason(error)}); {REMEDY}.")
                continue
            yield number, line, checked

    def lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) of a JSONL file; damaged lines are skipped and reported."""
        try:
            only_regular(path)
            file = path.open("rb")
        except FileNotFoundError:
            return
        except (OSError, UserError) as error:
            self.tell_of(path, error)
            return
        with file:
            name = self.name(path)
            for number, raw in enumerate(file, start=1):
                try:
                    row = parse_row(raw, f"{name}, line {number}")
                except UserError as error:
                    self.tell(str(error))
                    continue
                if row is not None:
                    yield number, row

    def table(self, path: Path) -> list[dict[str, float]]:
        """The rows of a CSV file as column -> number; other cells are skipped. A file that cannot be read is reported.

        Numbers that no chart can show (nan: the training diverged) are reported once per file.
        """
        try:
            reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
            rows = [(reader.line_num, row) for row in reader]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, csv.Error) as error:
            self.tell_of(path, error)
            return []
        found, omitted = [], []
        for place, row in rows:
            numbers: dict[str, float] = {}
            for key, cell in row.items():
                try:
                    value = float(cell)
                except (TypeError, ValueError):
                    continue
                if isfinite(value):
                    numbers[key] = value
                else:
                    omitted.append(f"line {place}: {key} is {value}")
            found.append(numbers)
        if omitted:
            self.tell(
                f"{self.name(path)}, {omitted[0]} (such cells: {len(omitted)}), which charts leave out: the training "
                "diverged (lower its learning rate), or the file is damaged (run `make repro`)."
            )
        return found

    def name(self, path: Path) -> str:
        """The path relative to the run's folder, as used in messages."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def tell_of(self, path: Path, error: Exception) -> None:
        """Report that a file cannot be read; a ``UserError`` itself names the file and the remedy."""
        if isinstance(error, UserError):
            self.tell(str(error).replace(str(path), self.name(path)))
        else:
            self.tell(f"{self.name(path)} cannot be read ({_reason(error)}); {REMEDY}.")

    def tell(self, problem: str) -> None:
        """Report a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)


def _reason(error: Exception) -> str:
    """What is wrong with a line or file, briefly: the message may quote a key or a number of the file."""
    return (fault(error) if isinstance(error, ValidationError) else first_line(error))[:300]


def _base_first(name: str) -> tuple[bool, list[Any]]:
    """Sort key: ``base`` first, ``iter2`` before ``iter10``."""
    return name != "base", [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
