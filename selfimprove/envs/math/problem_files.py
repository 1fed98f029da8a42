"""What readers of problem files share: ids made from content, and fields that must hold text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits


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
