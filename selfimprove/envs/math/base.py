"""What an environment with one right answer promises: problems, and a grade for any text a model writes.

Implementations: ``gsm8k`` and ``competition`` (MATH); ``world.make_env`` picks one by the fields of the ``env`` params.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits


@dataclass(frozen=True)
class Problem:
    """One problem. ``answer`` is the gold text in full, as the data set gives it; ``gold`` what was parsed from it."""

    id: str
    question: str
    answer: str
    gold: str


class Grade(NamedTuple):
    """A score and the answer it rests on (None: no answer could be read)."""

    reward: float
    answer: str | None


class AnswerEnv(Protocol):
    """One question, attempts at it, a verifier. Methods are pure: equal arguments give equal results."""

    @property
    def name(self) -> str:
        """As in the ``env`` params."""
        ...

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Problems of (line number, row) pairs, as ``records.read_rows`` yields them.

        Raises:
            UserError: a field is missing or the gold answer does not parse (names file and line).
        """
        ...

    def extract(self, attempt: str) -> str | None:
        """The attempt's answer, or None."""
        ...

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether two extracted answers say the same; a missing answer equals nothing, not even another."""
        ...

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """Score an attempt: 1 right, 0 wrong (GSM8K: -1 when no answer can be read)."""
        ...

    def demonstration(self, problem: Problem) -> str:
        """The gold solution, written as an attempt that ends in ``\\boxed{...}``."""
        ...

    def slip(self, problem: Problem, *key: object) -> str:
        """A plausible wrong attempt: the gold solution with another final answer; ``key`` names the draw."""
        ...


class Ids:
    """Ids from content (the question's hash), so that they survive re-ordering and subsetting of a file.

    A question that a file repeats gets ``-2``, ``-3``, … in the order of the file.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: dict[str, int] = {}

    def of(self, row: Mapping[str, Any], question: str) -> str:
        """The row's own ``id`` if it has one, else one made from the question."""
        own = row.get("id")
        base = own if isinstance(own, str) and own else f"{self._prefix}-{key_bits(self._prefix, question):016x}"
        self._seen[base] = self._seen.get(base, 0) + 1
        return base if self._seen[base] == 1 else f"{base}-{self._seen[base]}"


def text_field(row: Mapping[str, Any], field: str, where: Path, line: int) -> str:
    """A field that must be there and hold text.

    Raises:
        UserError: it is missing, empty or no text (names file, line and field).
    """
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}, line {line}: field {field!r} must hold text; fix or delete the line.")
    return value
