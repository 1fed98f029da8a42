"""Question answering with tools: the types of questions and scores, and the names of the tasks.

A question of the embedded encyclopedia, and a score::

    {"id": "ency-3f1c", "task": "encyclopedia", "question": "In which town was the author of The Silver Gate born?",
     "gold": "Tolma", "titles": ["The Silver Gate", "Mara Venn"], "kind": "bridge"}

    score("the town of Tolma", question)  ->  Score(reward=0.0, em=False, f1=0.5, pred="town of tolma", gt="tolma")

Tasks and metrics: docs/spin.md, S24 to S28. The answer is the argument of an episode's ``finish[...]``; how it is found
is up to the method.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.records import Record, only_regular

TaskName = Literal["encyclopedia", "hotpotqa", "strategyqa", "bamboogle", "mmlu", "chat"]
Split = Literal["train", "dev", "test"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)


class Question(Record):
    """One question. ``titles``: the paragraphs with the facts for the answer, in the order in which they are needed."""

    id: str
    task: str
    question: str
    gold: str
    titles: list[str] = Field(default=[])
    kind: str = Field(
        default="", description="bridge, comparison, … as in the data set; empty if the data set does not specify it"
    )


class Paragraph(Record):
    """One entry of a searchable corpus."""

    title: str
    text: str


@dataclass(frozen=True)
class Score:
    """An answer's scores: ``reward`` 1 or 0 (by the task's rule), exact match, F1 in [0, 1], and the texts compared."""

    reward: float
    em: bool
    f1: float
    pred: str
    gt: str


# --- files -----------------------------------------------------------------------------------------------------------


def pick_split(task: str, split: str, files: Mapping[str, str], folder: Path) -> Path:
    """The file of a split.

    Raises:
        UserError: the task has no such split with answers, or the file is missing.
    """
    if split not in files:
        raise UserError(f"{task} has no split {split!r} with answers; choose {' or '.join(files)}.")
    path = folder / files[split]
    if not path.is_file():
        raise UserError(f"{path} does not exist, but the {split} split of {task} is read from it; add the file.")
    return path


def read_table(path: Path, *, header: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """(place, cells) of a CSV file, without its header.

    Args:
        header: the names of the columns, which the first line must contain; empty: the file has no header.

    Raises:
        UserError: the file is missing, is not UTF-8 CSV, or begins with another line than the header.
    """
    only_regular(path)
    try:
        # Spreadsheets write a byte order mark, which is not a part of the first cell.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            if header and next(reader, None) != list(header):
                raise UserError(f"{path}: the first line must be the header {','.join(header)}; add it.")
            for cells in reader:
                if cells:
                    yield f"{path}, line {reader.line_num}", cells
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; fix the path in params.yaml.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file ({error}); restore it from its source.") from None


def content_id(task: str, *parts: str) -> str:
    """An id derived from content, so that it survives reordering."""
    return f"{task}-{blake2b(chr(31).join(parts).encode(), digest_size=6).hexdigest()}"


def folded(question: str) -> str:
    """A question's text with case and spaces normalised, to find duplicates."""
    return " ".join(question.lower().split())


def duplicates(splits: Mapping[str, Sequence[Question]]) -> dict[str, list[str]]:
    """Questions that occur more than once, in one split or several: {text: splits}, ignoring case and spaces."""
    places: dict[str, list[str]] = {}
    for name, questions in splits.items():
        for question in questions:
            places.setdefault(folded(question.question), []).append(name)
    return {text: names for text, names in places.items() if len(names) > 1}
