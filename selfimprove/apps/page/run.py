"""Reads the files of a run for the page; a missing or damaged file is never an error.

A run is a folder with ``params.yaml``, ``results/``, ``data/`` and, if DVC ran it, ``dvc.lock``. Damaged files are
skipped and reported in ``Run.problems``; in a JSONL file only the damaged lines, with file name and line number.
"""

import csv
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.apps.report.table import SUMMARIES, read_summaries
from selfimprove.core.errors import UserError, first_line
from selfimprove.core.records import load_json, only_regular, parse_row
from selfimprove.methods.rows import NONE, START
from selfimprove.pipeline.params import METHODS

SPLITS = ("train", "dev", "test")

COLUMNS = 7
"""Maximum number of metrics shown for a method that has no summary yet."""


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
            found = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, YAMLError) as error:
            self.tell(f"{self.name(path)} cannot be read ({first_line(error)}).")
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def methods(self) -> list[str]:
        """The methods that have results, in the order of ``METHODS``."""
        return [name for name in METHODS if (self.root / "results" / name).is_dir()]

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Method -> the summary of its report stage; without one, a partial summary of the rows measured so far."""
        found = {}
        for method in self.methods:
            try:
                whole = read_summaries([method], self.root / SUMMARIES)
            except (OSError, ValueError, UserError) as error:
                self.tell(f"{SUMMARIES}/{method}.json cannot be read ({first_line(error)}); run `make repro`.")
                whole = {}
            found[method] = whole.get(method) or self._partial(method)
        return found

    def run_param(self, key: str) -> Any:
        """A value of the section ``run``; None if it is missing."""
        section = self.params.get("run")
        return section.get(key) if isinstance(section, dict) else None

    def _partial(self, method: str) -> dict[str, Any]:
        """A summary of the measured rows, without differences and without a last row."""
        rows: dict[str, Any] = {}
        columns: list[str] = []
        for name in self.rows(method):
            metrics = self.json(self.root / "results" / method / name / "metrics.json")
            if not metrics:
                continue
            trained = self.json(self.root / "results" / method / name / "train.json")
            rows[name] = {
                "what": "",
                "metrics": metrics,
                "training_tokens": trained.get("real_tokens", 0),
                "training_steps": trained.get("steps", 0),
            }
            first = next(self.lines(self.root / "results" / method / name / "outcomes.jsonl"), None)
            names = (
                [key for key in (first[1].get("values") or {}) if isinstance(metrics.get(key), dict)] if first else []
            )
            columns = columns or names[:COLUMNS]
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
                for _, row in self.lines(self.root / "data" / method / "tasks" / f"{split}.jsonl"):
                    named[str(row.get("id") or f"{row.get('env')}-{row.get('task_id')}")] = split
        return found

    def json(self, path: Path) -> dict[str, Any]:
        """A JSON object; {} if the file is missing, or damaged, which is reported."""
        if not path.exists():
            return {}
        try:
            value = load_json(path)
        except UserError as error:
            self.tell(str(error).replace(str(path), self.name(path)))
            return {}
        return value if isinstance(value, dict) else {}

    def lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) of a JSONL file; damaged lines are skipped and reported."""
        try:
            only_regular(path)
            file = path.open("rb")
        except FileNotFoundError:
            return
        except (OSError, UserError) as error:
            self.tell(f"{self.name(path)} cannot be read ({first_line(error)}).")
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
        """The rows of a CSV file as column -> number; cells that are not numbers are skipped."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return []
        found = []
        for row in csv.DictReader(text.splitlines()):
            numbers = {}
            for key, cell in row.items():
                try:
                    numbers[key] = float(cell)
                except (TypeError, ValueError):
                    continue
            found.append(numbers)
        return found

    def name(self, path: Path) -> str:
        """The path relative to the run's folder, as used in messages."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def tell(self, problem: str) -> None:
        """Report a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)


def as_json(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _base_first(name: str) -> tuple[bool, list[Any]]:
    """Sort key: ``base`` first, ``iter2`` before ``iter10``."""
    return name != "base", [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
