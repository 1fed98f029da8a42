"""Reads problem files: one question and its gold solution per row, with ids derived from the content."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import text_field
from selfimprove.core.seeds import key_bits
from selfimprove.envs.interface import Problem


class Ids:
    """Ids derived from content (the question's hash), so that they survive reordering and subsetting of a file.

    Repeated questions get the first unused suffix of ``-2``, ``-3``, … in file order.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: set[str] = set()

    def of(self, question: str, own: str | None = None) -> str:
        """The row's own id if it has one, else an id derived from the question; made unique by a suffix."""
        base = own or f"{self._prefix}-{key_bits(self._prefix, question):016x}"
        candidates = chain([base], (f"{base}-{number}" for number in count(2)))
        found = next(name for name in candidates if name not in self._seen)
        self._seen.add(found)
        return found


def problems_of(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    where: Path,
    name: str,
    fields: tuple[str, str],
    parse_gold: Callable[[str], str | None],
    lacking: str,
) -> list[Problem]:
    """The problems in (line, row) pairs; a row's own ``id`` takes precedence.

    Args:
        fields: the keys of a row's question and of its solution.
        lacking: what a solution without a gold answer lacks, for the message.

    Raises:
        UserError: a field is missing or not text, an id is neither text nor an integer, or a solution has no gold
            answer.
    """
    ids, problems = Ids(name), []
    for line, row in rows:
        place = f"{where}, line {line}"
        question, solution = (text_field(row, field, place) for field in fields)
        gold = parse_gold(solution)
        if gold is None:
            raise UserError(f"{place}: {lacking}; fix or delete the line.")
        own = row.get("id")
        if own is not None and (isinstance(own, bool) or not isinstance(own, str | int)):
            raise UserError(f"{place}: field 'id' must be text or an integer; fix or delete it.")
        problems.append(Problem(ids.of(question, None if own is None else str(own)), question, solution, gold))
    return problems
