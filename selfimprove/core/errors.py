"""The one exception that a user is meant to see, and the short form of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Something the user can correct: one sentence that names the place (file, line, key) and the remedy.

    The stage runner prints the sentence and exits with code 2; no traceback, and nothing already done is lost.
    """


def fault(error: ValidationError) -> str:
    """The first thing that does not fit a schema, behind its place: ``field 'tasks.0.id': Field required``."""
    first = error.errors()[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"field {place!r}: {message}" if place else message


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, 300 characters at most; the exception's type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
