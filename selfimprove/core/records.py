"""The records that stages exchange: messages, episodes and training examples, in one JSONL schema for all methods.

An episode records what happened (written by generate); an example is what to train on (written by convert). Both keep
the token ids as generated, so that training never re-tokenises a model's own output.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfimprove.core.errors import UserError, fault, first_line

LARGEST = 1e100
"""Squares of numbers up to this size, and their sums, are finite; larger ones in a file of results are refused."""

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length"]


class Record(BaseModel):
    """Base of every record in a JSONL file: closed schema, finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Message(Record):
    """One message of a dialogue.

    ``token_ids`` are the content's ids as the engine generated them, without the end-of-turn token (None: the message
    comes from a human, an environment or a remote model, and the chat format tokenises ``content``). ``finish`` is the
    reason why generation ended; a message cut by the token limit has no end-of-turn token to train on. ``weight``
    multiplies the message's loss in training (0: context only).
    """

    role: Role
    content: str
    token_ids: list[int] | None = None
    finish: Finish | None = None
    weight: float = Field(default=0.0, ge=0)


class Attempt(Record):
    """One sampled action of a turn, with its reward. ``answer`` is what the grader extracted (None: nothing found)."""

    text: str
    reward: float | None
    answer: str | None = None
    token_ids: list[int] | None = None
    finish: Finish | None = None
    valid: bool = Field(default=True, description="False: the environment could not parse or execute it")


class Turn(Record):
    """One step of an episode: the samples drawn, the index of the chosen one, and the environment's observation."""

    model: str
    attempts: list[Attempt]
    chosen: int = Field(ge=0, description="index into attempts")
    observation: str
    omitted: int = Field(
        default=0, ge=0, description="number of earlier messages (the oldest) omitted from this turn's prompt"
    )
    degenerate: int = Field(default=0, ge=0, description="number of samples dropped as degenerate, in all draws")

    @model_validator(mode="after")
    def _chose_one(self) -> Turn:
        if self.chosen >= len(self.attempts):
            raise ValueError(f"chosen is {self.chosen}, but there are {len(self.attempts)} attempts, counted from 0")
        return self

    @property
    def attempt(self) -> Attempt:
        """The attempt that entered the dialogue."""
        return self.attempts[self.chosen]

    @property
    def messages(self) -> tuple[Message, Message]:
        """The two messages of the turn in the prompts of later ones: the attempt and the observation."""
        said = self.attempt
        return (
            Message(role="assistant", content=said.text, token_ids=said.token_ids, finish=said.finish),
            Message(role="user", content=self.observation),
        )


Status = Literal["solved", "unsolved", "blocked"]


class Episode(Record):
    """One problem, played to its end.

    ``prompt`` holds the messages before the first action, ``turns`` the actions and observations from there on.
    ``status`` is ``blocked`` if an engine or the environment failed permanently; the turns before the failure are kept.
    ``seed`` is the run/task prefix of the seed key, from which every sample of the episode can be reproduced.
    """

    id: str
    env: str
    query: str
    gold: str = Field(description="the complete gold answer, as in the data set")
    prompt: list[Message]
    turns: list[Turn]
    status: Status
    seed: str
    error: str | None = None
    run: str = Field(default="", description="identifies one of several runs on the same problem, such as sequential")

    @property
    def rewards(self) -> list[float]:
        """Reward of the chosen attempt at each turn; turns without a reward are omitted."""
        return [turn.attempt.reward for turn in self.turns if turn.attempt.reward is not None]


class Example(Record):
    """One training sample: a dialogue; each message's ``weight`` is the weight of its tokens in the loss."""

    id: str
    messages: list[Message]
    source: str = Field(default="", description="id of the episode or problem that it was created from")


class Pair(Record):
    """Two continuations of one prompt: the expert's (``real``) and the model's own (``generated``).

    Messages with a non-zero weight are the policy's (the size is irrelevant); observations have weight 0 and are never
    scored. ``source`` is the pair's origin, such as the iteration that generated it.
    """

    id: str
    prompt: list[Message]
    real: list[Message]
    generated: list[Message]
    source: str = ""


R = TypeVar("R", bound=Record)


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def dump_line(record: Record) -> str:
    """One JSON line with keys in schema order and default values omitted: equal records give equal bytes."""
    return json.dumps(record.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False, allow_nan=False)


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Write records to a new file. Callers publish the file atomically (``core.publish``)."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(dump_line(record) + "\n" for record in records)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write plain objects, one JSON line each, to a new file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_rows(path: Path, *, may_be_empty: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of a JSONL file from any source; blank lines are skipped.

    Raises:
        UserError: the file is missing or empty, or a line is not UTF-8 or not one complete JSON object.
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
        UserError: the line is not UTF-8 or not one complete JSON object (names ``where``).
    """
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start}); save the file as UTF-8.") from None
    if not line.strip():
        return None
    if line.startswith("\ufeff"):  # invisible; some Windows editors write it
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
        UserError: as ``read_rows``; or a row does not match the schema (names the field).
    """
    records = []
    for number, row in read_rows(path, may_be_empty=may_be_empty):
        try:
            records.append(kind.model_validate(row))
        except ValidationError as error:
            raise UserError(f"{path}, line {number}: {fault(error)}; fix or delete the line.") from None
    return records


def only_regular(path: Path) -> None:
    """Refuse an existing path that is neither a file nor a folder: reading a pipe or device may block forever.

    Raises:
        UserError: the path is a pipe, a socket or a device, or its name is too long.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is a pipe or a device; name a regular file.")
    except OSError as error:
        raise UserError(f"{str(path)[:80]}… can't be looked up ({error.strerror}); fix the path.") from None


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file written by one of this repository's stages.

    Raises:
        UserError: the file is missing or damaged; OSError: it can't be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `make repro`, which writes it.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({first_line(error)}); restore it, or generate it again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; restore it, or generate it again.")
    return value


def read_number(path: Path, key: str) -> float:
    """A number, or an estimate's n, in a JSON file written by one of this repository's stages.

    Raises:
        UserError: there is no such file or number; OSError: the file can't be read.
    """
    value = read_object(path).get(key)
    if isinstance(value, Mapping):
        value = value.get("n")
    if not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise UserError(f"{path}: field {key!r} must be a number; restore the file, or run `make repro`.")
    return value


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for each item of a JSON list or JSONL file; a place reads like "dev.json, item 3".

    Raises:
        UserError: the file is missing or neither format, or an item is not an object.
    """
    if path.suffix == ".jsonl":
        for line, row in read_rows(path):
            yield f"{path}, line {line}", row
        return
    rows = load_json(path)
    if not isinstance(rows, list):
        raise UserError(f"{path} is not a list of JSON objects; restore it from its source.")
    if not rows:
        raise UserError(f"{path} is an empty list; name a file with entries.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path}, item {number}: an object was expected; fix or delete it.")
        yield f"{path}, item {number}", row


def text_field(row: Mapping[str, Any], key: str, place: str) -> str:
    """A field of a row that must hold text; ``place`` (file and line) is for the message.

    Raises:
        UserError: the field is missing, blank or not a string.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{place}: field {key!r} must be text; fix or delete it.")
    return value


def load_json(path: Path, constant: Callable[[str], Any] = _refuse_constant) -> Any:
    """The content of a JSON file from any source; ``constant``: the value of NaN and Infinity, refused by default.

    Raises:
        UserError: the file does not exist, can't be read, is not JSON, or contains an unpaired surrogate.
    """
    only_regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"), constant)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the stage that writes it, or fix the path.") from None
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror}); fix or replace it.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({first_line(error)}); restore it, or generate it again.") from None


def load_object(path: Path) -> dict[str, Any]:
    """A JSON object; {} if there is no such file or it is not an object. Raises: UserError: it is not JSON."""
    if not path.is_file():
        return {}
    value = load_json(path)
    return value if isinstance(value, dict) else {}


def parse_json(text: str, constant: Callable[[str], Any] = _refuse_constant) -> Any:
    """The value of a strict JSON text; ``constant``: see ``load_json``.

    Raises:
        ValueError: not JSON, or contains NaN, Infinity or an unpaired surrogate (1e999 is read as an infinity);
        RecursionError: nested too deeply.
    """
    value = json.loads(text, parse_constant=constant)
    if "\\ud" in text.lower():  # JSON allows unpaired surrogates; neither files nor tokenizers do
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def plain_text(text: str) -> str:
    """Replaces lone surrogates, which JSON and Python's strings may hold but UTF-8 cannot; pairs become characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def mean_and_error(values: Iterable[float]) -> dict[str, float | int]:
    """Mean, standard error of the mean (sample standard deviation / sqrt(n); 0 for n < 2) and n."""
    sample = list(values)
    n = len(sample)
    if n == 0:
        return {"mean": 0.0, "se": 0.0, "n": 0}
    mean = math.fsum(sample) / n
    if n == 1:
        return {"mean": mean, "se": 0.0, "n": 1}
    variance = math.fsum((value - mean) ** 2 for value in sample) / (n - 1)
    return {"mean": mean, "se": math.sqrt(variance / n), "n": n}
