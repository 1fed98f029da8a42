"""The one exception that a user is meant to see, and the short form of others."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error codes of a full disk, a full quota and a limit on file sizes: no fault of a path."""
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO,
)  # fmt: skip


class UserError(Exception):
    """Something the user can correct: one sentence that names the place (file, line, key) and the remedy.

    The stage runner prints the sentence and exits with code 2; no traceback, and nothing already done is lost.
    """


def fault(error: ValidationError) -> str:
    """The first thing that does not fit a schema, behind its place: ``field 'tasks.0.id': Field required``."""
    first = error.errors()[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"field {place!r}: {message}" if place else message


def meant(name: object, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about an unknown name: the nearest that is known; ``otherwise`` where none is near."""
    near = get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends with a question."""
    return text if text.endswith("?") else f"{text}."


def fixed(path: object) -> bool:
    """Whether nobody can choose the file's place: ``params.yaml``, which is read and written where it is."""
    return str(path) == "params.yaml"


def refusal(error: BaseException) -> str | None:
    """The sentence on a file that the system would not read or write; None if the error is another one."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, target, reason = error.args[0][0]  # of a folder's copy: (source, target, what was said) of each file
        return f"{target} can't be written ({reason}); free some space, or use another path."
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return f"{error.filename or 'a file'} can't be written ({error.strerror}); free some space and run it again."
    if error.errno in _REFUSED and error.filename:
        remedy = "fix that" if fixed(error.filename) else "fix that, or use another path"
        return f"{error.filename} can't be read or written ({error.strerror}); {remedy}."
    return None


def for_terminal(text: str) -> str:
    """The text with control and other invisible characters by their codes: an error may repeat what a model wrote.

    Line breaks stay.
    """
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, 300 characters at most; the exception's type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
