"""The sets of episodes of a run and their index, by which the page filters without loading the episodes.

A set is one file: a row's evaluation, generated episodes, training examples or reinforcement log. A method's index
lists its tasks once, and every set has one column per property: 200,000 episodes take a few short arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfimprove.apps.page import episodes
from selfimprove.apps.page.chunks import write_chunk, write_records
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.words import method_name, row_name

PAIRED = ("pairs", "outcome", "own", "_centric")
"""Suffixes of the names of pair files, which have their own view (``pairs.py``)."""

LABELS = {"reinforcement": "reinforcement learning"}

SECOND = {episodes.PARALLEL: "sequential runs", episodes.BEGUN: "from the start"}
"""A second run of an evaluation, which distributions leave out -> the name of what they show instead."""

LETTERS = {"solved": "s", "unsolved": "u", "blocked": "b", "example": "e", "logged": "l"}


@dataclass
class Source:
    """A set, read from one file."""

    row: str
    phase: str
    path: Path

    @property
    def name(self) -> str:
        """The name used in links: ``iter2/evaluation``."""
        return f"{self.row}/{self.phase}"


Extend = Callable[[str, Source, int, Mapping[str, Any], dict[str, Any]], None]
"""(method, set, number of lines in its file, line, record): adds tokens and log-probabilities to the record."""


@dataclass
class Library:
    """The index of one method."""

    method: str
    tasks: dict[str, list[str]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=lambda: {"": 0})
    sets: list[dict[str, Any]] = field(default_factory=list)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    """Row -> number of generated tokens of each evaluated episode whose token ids were kept, second runs excepted."""


def sources(run: Run, method: str, trained: Mapping[str, str]) -> list[Source]:
    """The sets of a method, evaluations first.

    Args:
        trained: file of training examples -> the row trained on it; files that no row is trained on are omitted. Empty
            if the graph of stages is unknown: each file then belongs to the row it was made for.
    """
    results, data = run.root / "results" / method, run.root / "data" / method
    rows = run.rows(method)
    found = [Source(row, "evaluation", results / row / "episodes.jsonl") for row in rows]
    found += [Source(row, "generation", data / row / "episodes.jsonl") for row in rows]
    found += [Source(row, "reinforcement", results / row / "log.jsonl") for row in rows]
    found.append(Source("teacher", "demonstrations", data / "trajectories.jsonl"))
    for row in rows:
        for path in sorted((data / row / "train").glob("*.jsonl")):
            learner = trained.get(run.name(path), "") if trained else row
            if learner and not path.stem.endswith(PAIRED):
                named = "" if trained or path.stem == "examples" else f" ({path.stem.replace('_', ' ')})"
                found.append(Source(learner, f"training{named}", path))
    return [one for one in found if one.path.is_file() and one.path.stat().st_size]


def write_library(
    run: Run, method: str, folder: Path, extend: Extend | None = None, trained: Mapping[str, str] | None = None
) -> Library:
    """Write a method's episodes and their index to ``folder``; returns the index. For ``trained``, see ``sources``."""
    library = Library(method)
    for number, source in enumerate(sources(run, method, trained or {})):
        columns: dict[str, list[Any]] = {key: [] for key in ("t", "r", "n", "x", "z", "u", "l", "p")}
        letters: list[str] = []

        def records(source: Source = source, columns: Any = columns, letters: Any = letters) -> Any:
            count = counted(source.path)
            for line, raw, record in episodes.read(run, source.path):
                if source.phase == "evaluation" and record["u"] not in SECOND and (length := _length(record)):
                    library.lengths.setdefault(source.row, []).append(length)
                if extend is not None:
                    extend(method, source, count, raw, record)
                task = library.tasks.setdefault(
                    record["t"], [str(len(library.tasks)), record["q"][:300], run.splits[method].get(record["t"], "")]
                )
                columns["t"].append(int(task[0]))
                columns["r"].append(None if record["r"] is None else round(1000 * record["r"]))
                columns["n"].append(record["n"])
                columns["x"].append(record["x"])
                columns["z"].append(record["z"])
                columns["u"].append(library.runs.setdefault(record["u"], len(library.runs)))
                columns["l"].append(line)
                columns["p"].append(int(any(len(part) > 3 for said in record["m"] for part in said["p"])))
                letters.append(LETTERS.get(record["s"], "u"))
                yield record

        name = f"{method}-{number}"
        starts = write_records(folder, name, records())
        library.sets.append(
            {
                "name": source.name,
                "row": source.row,
                "phase": source.phase,
                "file": name,
                "starts": starts,
                "path": run.name(source.path),
                "label": f"{row_name(method, source.row)}: {LABELS.get(source.phase, source.phase)}",
                "size": len(letters),
                "s": "".join(letters),
                **_short(columns),
            }
        )
    index = {
        "method": method, "name": method_name(method), "runs": list(library.runs),
        "tasks": [[key, text, split] for key, (_, text, split) in library.tasks.items()], "sets": library.sets,
    }  # fmt: skip
    write_chunk(folder, f"{method}-index", index)
    return library


def _length(record: Mapping[str, Any]) -> int:
    return sum(len(part[2] or ()) for said in record["m"] for part in said["p"])


def _short(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Compress columns: a constant column becomes its value, line numbers that count from 1 are omitted."""
    found: dict[str, Any] = {}
    for key, column in columns.items():
        if key == "l" and column == list(range(1, len(column) + 1)):
            continue
        found[key] = column[0] if column and column.count(column[0]) == len(column) else column
    return found


def counted(path: Path) -> int:
    """Number of lines in a file."""
    with path.open("rb") as file:
        return sum(1 for _ in file)
