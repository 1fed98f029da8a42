"""Rows of plain SPIN: chats cut to a prompt and its answer, with the opponent's answer (docs/spin.md, S45).

A row, before generation::

    {"real": [{"role": "user", "content": "How do …?"}, {"role": "assistant", "content": "You …"}],
     "generated": [{"role": "user", "content": "How do …?"}, {"role": "assistant", "content": ""}]}

Files are parquet, like the original's, or JSONL.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from selfimprove.core.errors import UserError, first_line
from selfimprove.core.records import Record, read_records, write_rows
from selfimprove.core.seeds import datasets_order
from selfimprove.envs.qa.base import Question, content_id
from selfimprove.envs.qa.datasets import own_ids
from selfimprove.envs.qa.experts import Expert, Round

FileFormat = Literal["jsonl", "parquet"]
Split = Literal["train", "test"]
Row = dict[str, Any]

STEM = "{split}_prefs-00000-of-00001"
READ = (".jsonl", ".json", ".parquet")
SEED = 42
"""The original's seed for every shuffle."""
TULU_TEST = 0.1
"""Share of tulu-v2, which has no test split, to hold out."""


class Reformatted(Record):
    """Counts of a data set's chats, kept and dropped."""

    train: int = 0
    test: int = 0
    malformed: int = 0
    """dropped: not a user message followed by an assistant message, both with text"""
    ranking_files: int = 0
    """dropped: files of ultrachat_200k's other splits, train_gen and test_gen, which are for ranking"""


def first_exchange(chat: Mapping[str, Any]) -> Row | None:
    """The row of a chat ``{"messages": […]}``, from its first two messages; None if they are not prompt and answer.

    A system message before them is dropped, because plain SPIN's own system turn is empty.
    """
    messages = chat.get("messages")
    if not isinstance(messages, (list, tuple)) or not all(isinstance(message, Mapping) for message in messages):
        return None
    turns = [message for message in messages if message.get("role") != "system"][:2]
    texts = [message.get("content") for message in turns]
    if [message.get("role") for message in turns] != ["user", "assistant"]:
        return None
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return None
    return make_row(str(texts[0]), str(texts[1]), "")


def make_row(prompt: str, real: str, generated: str) -> Row:
    """The row of a prompt and its two answers."""
    asked = {"role": "user", "content": prompt}
    return {
        "real": [asked, {"role": "assistant", "content": real}],
        "generated": [asked, {"role": "assistant", "content": generated}],
    }


def reformat(data: Path, kind: Literal["ultrachat", "tulu-v2"]) -> tuple[dict[Split, list[Row]], Reformatted]:
    """Rows of a folder of chats. Ultrachat's file names give the split; of tulu-v2, a tenth becomes the test split.

    Raises:
        UserError: the folder does not exist or has no usable file or chat.
    """
    counts = Reformatted()
    rows: dict[Split, list[Row]] = {"train": [], "test": []}
    for path in _files(data):
        split: Split = "test" if kind == "ultrachat" and re.search(r"(^|_)test", path.stem) else "train"
        if kind == "ultrachat" and re.search(r"(^|_)(train|test)_gen(-|$)", path.stem):
            counts.ranking_files += 1
            continue
        for _, chat in read_rows_of(path):
            row = first_exchange(chat)
            if row is None:
                counts.malformed += 1
            else:
                rows[split].append(row)
    if kind == "tulu-v2":
        order = datasets_order(len(rows["train"]), SEED)
        held = set(order[: math.ceil(TULU_TEST * len(order))])
        everything = rows["train"]
        rows = {
            "train": [row for index, row in enumerate(everything) if index not in held],
            "test": [row for index, row in enumerate(everything) if index in held],
        }
    if not rows["train"]:
        raise UserError(f"{data}: no training chat with a user prompt and an answer; name the data set's folder.")
    counts.train, counts.test = len(rows["train"]), len(rows["test"])
    return rows, counts


def fractions(count: int, length: int) -> int:
    """The number of fractions of ``length`` rows that ``count`` rows make, ceil(n/L); length 0 means the whole set."""
    return 1 if length == 0 else -(-count // length)


def fraction(rows: Sequence[Row], index: int, length: int) -> list[tuple[int, Row]]:
    """(place, row) of fraction ``index``: shuffled rows [index * length, (index + 1) * length); the last may be short.

    The shuffle is the original's, so that its fractions and ours contain the same rows.

    Raises:
        UserError: there is no such fraction; the original writes an empty one, which breaks gathering.
    """
    if not rows:
        raise UserError("the split has no rows, so it has no fractions; name another split or data set.")
    count = fractions(len(rows), length)
    if not 0 <= index < count:
        raise UserError(
            f"there is no fraction {index}: {len(rows)} rows in fractions of {length or len(rows)} give the fractions "
            f"0 to {count - 1}; choose one of those."
        )
    order = datasets_order(len(rows), SEED)
    mine = order[index * length : (index + 1) * length] if length else order
    return [(place, rows[place]) for place in mine]


def fraction_name(index: int, split: Split) -> str:
    """File name of one fraction's rows."""
    return f"loser_{index}.jsonl" if split == "train" else f"loser_{index}_test.jsonl"


def fractions_of_test(folder: Path) -> int:
    """The number of the test split's fractions, from the highest number of a file; 0 if there is none."""
    names = [file.name.removeprefix("loser_").removesuffix("_test.jsonl") for file in folder.glob("loser_*_test.jsonl")]
    return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


def gathered(folder: Path, count: int, split: Split) -> list[Row]:
    """The rows of all ``count`` fractions, in order.

    Raises:
        UserError: a fraction is missing or empty, a row has no answer, or a fraction beyond ``count`` exists.
    """
    missing = [index for index in range(count) if not (folder / fraction_name(index, split)).is_file()]
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(f"{folder}: {len(missing)} of {count} fractions are missing ({some}); generate them first.")
    expected = {fraction_name(index, split) for index in range(count)}
    for file in sorted(folder.glob("loser_*.jsonl")):
        if file.name not in expected and file.stem.endswith("_test") == (split == "test"):
            raise UserError(
                f"{folder}: contains {file.name} too, so there are more than {count} fractions; raise --num-fracs, or "
                "delete the files of an earlier split into fractions."
            )
    rows = []
    for index in range(count):
        for place, row in read_rows_of(folder / fraction_name(index, split)):
            rows.append(_answered(row, place))
    return rows


def read_chats(folder: Path, split: Split) -> list[Expert]:
    """A reformatted split as experts of one round: the prompt is the question, the answer the demonstration.

    Every row is kept. Rows that repeat a prompt get ids that end with -2, -3 and so on.

    Raises:
        UserError: as ``reformatted``, or a row has another format.
    """
    questions = []
    for place, row in read_rows_of(reformatted(folder, split)):
        asked, real = (content(row, place, index) for index in (0, 1))
        questions.append(Question(id=content_id("chat", asked), task="chat", question=asked, gold=real))
    return [
        Expert(id=one.id, question=one, rounds=[Round(thought=one.gold, action="")], source="data")
        for one in own_ids(questions)
    ]


def reformatted(folder: Path, split: Split) -> Path:
    """The file that ``reformat`` wrote for a split.

    Raises:
        UserError: there is none, or one in each format, of which one may be outdated.
    """
    named = STEM.format(split=split)
    found = [path for path in _files(folder) if path.stem == named and path.parent == folder]
    if not found:
        raise UserError(
            f"{folder} has no {STEM.format(split=split)}.parquet or .jsonl; write it with `reformat` (docs/spin.md)."
        )
    if len(found) > 1:
        raise UserError(f"{folder} has {' and '.join(path.name for path in found)}; delete the outdated one.")
    return found[0]


def read_rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    """(place, object) of each row of a JSON, JSONL or parquet file.

    Raises:
        UserError: as ``read_records``, or the parquet file is invalid or damaged.
    """
    if path.suffix != ".parquet":
        yield from read_records(path)
        return
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError, ValueError) as fault:  # the type depends on what is damaged
        raise UserError(f"{path} is not a readable parquet file ({first_line(fault)}); download it again.") from None
    for number, row in enumerate(rows):
        yield f"{path}, row {number}", row


def write_rows_to(path: Path, rows: Iterable[Row]) -> None:
    """Write a JSONL or parquet file, depending on the suffix."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        turn = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
        columns = pyarrow.schema([(side, pyarrow.list_(turn)) for side in ("real", "generated")])  # if empty, too
        parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=columns), path)
        return
    write_rows(path, rows)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one with the data set's {', '.join(READ)} files.")
    return sorted((path for path in folder.rglob("*") if path.suffix in READ), key=str)


def content(row: Row, place: str, index: int) -> str:
    """The prompt (``index`` 0) or the answer (1) of a row.

    Raises:
        UserError: it is missing or empty (names ``place``).
    """
    text = _text(row, "real", index)
    if text is None or not text.strip():
        raise UserError(f"{place}: no prompt and answer under 'real'; write the file with `reformat` (docs/spin.md).")
    return text


def _answered(row: Row, place: str) -> Row:
    answer = _text(row, "generated", 1)
    if answer is None:
        raise UserError(f"{place}: no answer under 'generated'; generate this fraction again.")
    return make_row(content(row, place, 0), content(row, place, 1), answer.lstrip())


def _text(row: Row, side: str, index: int) -> str | None:
    try:
        text = row[side][index]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None
