"""What the stages hand to each other: messages, episodes and training examples, one JSONL schema for all methods.

An episode is what happened (generate writes it); an example is what to train on (convert writes it). Both keep the
token ids as they were generated, so that training never re-tokenises a model's own words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfimprove.core.errors import UserError, fault, first_line

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length"]


class Record(BaseModel):
    """Base of everything that is written to a JSONL file: closed schema, finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Message(Record):
    """One message of a dialogue.

    ``token_ids`` are the content's ids as the engine generated them, without the end-of-turn token (None: written by a
    person, an environment or a remote model; the chat format then tokenises ``content``). ``finish`` says how a
    generated message ended; one cut by the token limit has no end-of-turn token to train on. ``weight`` multiplies the
    message's loss in training (0: context only).
    """

    role: Role
    content: str
    token_ids: list[int] | None = None
    finish: Finish | None = None
    weight: float = Field(default=0.0, ge=0)


class Attempt(Record):
    """One sampled action of a turn, scored. ``answer`` is what the grader extracted, None if it could not."""

    text: str
    reward: float | None
    answer: str | None = None
    token_ids: list[int] | None = None
    finish: Finish | None = None
    valid: bool = Field(default=True, description="False: the environment did not understand or could not do it")


class Turn(Record):
    """One step of an episode: the samples drawn, which of them became the action, and what the environment said."""

    model: str
    attempts: list[Attempt]
    chosen: int = Field(ge=0, description="index into attempts")
    observation: str
    omitted: int = Field(
        default=0, ge=0, description="earlier turns' messages, the oldest, that the prompt of this turn left out"
    )

    @model_validator(mode="after")
    def _chose_one(self) -> Turn:
        if self.chosen >= len(self.attempts):
            raise ValueError(f"chosen is {self.chosen}, but there are {len(self.attempts)} attempts, counted from 0")
        return self

    @property
    def attempt(self) -> Attempt:
        """The attempt that entered the dialogue."""
        return self.attempts[self.chosen]


Status = Literal["solved", "unsolved", "blocked"]


class Episode(Record):
    """One problem, played to its end.

    ``prompt`` holds the messages before the first action; ``turns`` the actions and observations after it. ``status``
    is ``blocked`` when an engine failed for good: the turns before that are kept. ``seed`` is the seed key's
    run/task prefix, from which every sample of the episode is reproducible.
    """

    id: str
    env: str
    query: str
    gold: str = Field(description="the gold answer in full, as the data set gives it")
    prompt: list[Message]
    turns: list[Turn]
    status: Status
    seed: str
    error: str | None = None
    run: str = Field(default="", description="which of several runs over the same problem, such as sequential")

    @property
    def rewards(self) -> list[float]:
        """Reward of the chosen attempt at each turn; a turn that was never scored is left out."""
        return [turn.attempt.reward for turn in self.turns if turn.attempt.reward is not None]


class Example(Record):
    """One training sample: a dialogue; each message's ``weight`` is the weight of its tokens in the loss."""

    id: str
    messages: list[Message]
    source: str = Field(default="", description="id of the episode or problem it was made from")


class Pair(Record):
    """Two continuations of one prompt: the expert's (``real``) and the model's own (``generated``).

    What the policy wrote has a weight, whatever its size; observations have weight 0 and are never scored. ``source``
    says where the pair comes from, such as the iteration that generated it.
    """

    id: str
    prompt: list[Message]
    real: list[Message]
    generated: list[Message]
    source: str = ""


R = TypeVar("R", bound=Record)


def dump_line(record: Record) -> str:
    """One JSON line, keys in schema order, unset defaults left out: equal records give equal bytes."""
    return json.dumps(record.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False, allow_nan=False)


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write records to a new file; returns how many. Callers publish it whole (``pipeline.publish``)."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(dump_line(record) + "\n")
            count += 1
    return count


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write plain objects, one JSON line each, to a new file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_rows(path: Path, *, may_be_empty: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a JSONL file that somebody else may have written.

    Raises:
        UserError: the file is missing or empty, a line is not UTF-8, or is not one whole JSON object.
    """
    only_regular(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file.")
    if not path.is_file():
        raise UserError(f"{path} does not exist; run the stage that writes it, or fix the path.")
    seen = False
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            row = parse_row(raw, f"{path}, line {number}")
            if row is not None:
                seen = True
                yield number, row
    if not seen and not may_be_empty:
        raise UserError(f"{path} is empty; add at least one row, or name another file.")


def parse_row(raw: bytes, where: str) -> dict[str, Any] | None:
    """The object of one line of a JSONL file; None if the line is blank.

    Raises:
        UserError: the line is not UTF-8, or is not one whole JSON object (names ``where``).
    """
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start}); save the file as UTF-8.") from None
    if not line.strip():
        return None
    if line.startswith("\ufeff"):  # invisible, as Windows' editors write it
        raise UserError(f"{where}: the line begins with a byte order mark; save the file as UTF-8 without one.")
    try:
        row = parse_json(line)
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: half of a character (a lone surrogate such as \\ud800); fix or delete the line."
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{where}: not a whole JSON object (a torn line?); fix or delete the line.") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: a JSON object was expected; fix or delete the line.")
    return row


def read_jsonl(path: Path, kind: type[R], *, may_be_empty: bool = False) -> list[R]:
    """Read and validate a file of records.

    Raises:
        UserError: as ``read_rows``, or a row does not fit the schema (names the field).
    """
    records = []
    for number, row in read_rows(path, may_be_empty=may_be_empty):
        try:
            records.append(kind.model_validate(row))
        except ValidationError as error:
            raise UserError(f"{path}, line {number}: {fault(error)}; fix or delete the line.") from None
    return records


def only_regular(path: Path) -> None:
    """Refuse what is there but is neither a file nor a folder: reading a pipe or a device may never end.

    Raises:
        UserError: it is a pipe, a socket or a device, or its name is too long.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is a pipe or a device; name a regular file.")
    except OSError as error:
        raise UserError(f"{str(path)[:80]}… can't be looked up ({error.strerror}); fix the path.") from None


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file that a stage of ours wrote.

    Raises:
        UserError: it is damaged; OSError: it can't be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({first_line(error)}); restore it, or generate it again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; restore it, or generate it again.")
    return value


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of a JSON list or a JSONL file; the place reads like "dev.json, item 3".

    Raises:
        UserError: the file is missing or is neither, or an item is no object.
    """
    if path.suffix == ".jsonl":
        for line, row in read_rows(path):
            yield f"{path}, line {line}", row
        return
    rows = load_json(path)
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path} is not a list of JSON objects; restore it from its source.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path}, item {number}: an object was expected; fix or delete it.")
        yield f"{path}, item {number}", row


def text_field(row: Mapping[str, Any], key: str, place: str) -> str:
    """A field of a row that must hold text; ``place``: the file and the line, for the message.

    Raises:
        UserError: it is missing, empty or no text.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{place}: field {key!r} must be text; fix or delete it.")
    return value


def load_json(path: Path) -> Any:
    """The content of a JSON file that somebody else may have written.

    Raises:
        UserError: it does not exist, can't be read, or is not JSON; also for an unpaired surrogate.
    """
    only_regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the stage that writes it, or fix the path.") from None
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror}); fix or replace it.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({first_line(error)}); restore it, or generate it again.") from None


def parse_json(text: str) -> Any:
    """Strict JSON.

    Raises:
        ValueError: it is none, or holds NaN, an infinity or an unpaired surrogate; RecursionError: nested too deep.
    """
    value = json.loads(text, parse_constant=_refuse_constant)
    if "\\ud" in text.lower():  # JSON may hold an unpaired surrogate, which neither a file nor a tokenizer takes
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def mean_and_error(values: Iterable[float]) -> dict[str, float | int]:
    """Mean, standard error of the mean (sample deviation over root n; 0 for n < 2) and n, for a metrics file."""
    sample = list(values)
    n = len(sample)
    if n == 0:
        return {"mean": 0.0, "se": 0.0, "n": 0}
    mean = math.fsum(sample) / n
    if n == 1:
        return {"mean": mean, "se": 0.0, "n": 1}
    variance = math.fsum((value - mean) ** 2 for value in sample) / (n - 1)
    return {"mean": mean, "se": math.sqrt(variance / n), "n": n}
