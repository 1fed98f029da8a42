"""What a run has left on disk, read for the page: nothing here fails because a file is missing or damaged.

A run is a folder with ``params.yaml``, ``results/``, ``data/`` and, where DVC made it, ``dvc.lock``. What is damaged is
left out and said (``Run.problems``): a line of a JSONL file by its file and number.
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
"""So many metrics a method shows that has no summary yet."""


class Run:
    """A run's files. ``problems`` grows while they are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []

    @cached_property
    def params(self) -> dict[str, Any]:
        """``params.yaml``; {} where there is none."""
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
        """Those with any result, in ``METHODS``' order."""
        return [name for name in METHODS if (self.root / "results" / name).is_dir()]

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Method -> what its report stage wrote; a method without one gets the rows that have been measured."""
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
        """A value of the section ``run``; None where there is none."""
        section = self.params.get("run")
        return section.get(key) if isinstance(section, dict) else None

    def _partial(self, method: str) -> dict[str, Any]:
        """A summary of the rows that are there: no differences, and no claim about which row is the last."""
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
        """The row folders of a method: those of its summary in the table's order, then others that have any file."""
        summary = self.__dict__.get("summaries", {}).get(method) or {}
        found = {path.name for path in (self.root / "results" / method).glob("*") if path.is_dir()}
        found |= {path.parent.name for path in (self.root / "data" / method).glob("*/train")}
        found -= {START, NONE}  # no rows: what rows start from, and what stands where a row is named
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
        """A JSON object; {} if it is missing or damaged (then said)."""
        if not path.exists():
            return {}
        try:
            value = load_json(path)
        except UserError as error:
            self.tell(str(error).replace(str(path), self.name(path)))
            return {}
        return value if isinstance(value, dict) else {}

    def lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) of a JSONL file; damaged lines are left out and said."""
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
        """The numbers of a CSV file, by column; cells that are no number are left out."""
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
        """A file as messages name it: from the run's folder."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def tell(self, problem: str) -> None:
        """Note what is damaged, once."""
        if problem not in self.problems:
            self.problems.append(problem)


def as_json(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _base_first(name: str) -> tuple[bool, list[Any]]:
    """``base`` first, ``iter2`` before ``iter10``."""
    return name != "base", [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
