"""The one exception whose message is meant for users, and one-line forms of other exceptions."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error codes for a full disk, an exhausted quota and a file-size limit: the path itself is not at fault."""
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO,
)  # fmt: skip


class UserError(Exception):
    """An error that the user can correct: one sentence that names the place (file, line, key) and the remedy.

    The stage runner prints the sentence without a traceback and exits with code 2; finished work is kept.
    """


def fault(error: ValidationError, within: str = "") -> str:
    """The first validation error with its location: ``field 'tasks.0.id': Field required``.

    ``within``: the location of the validated part in its file.
    """
    first = error.errors()[0]
    parts = (within, *first["loc"]) if within else first["loc"]
    place, message = ".".join(map(str, parts)), first["msg"].removeprefix("Value error, ")
    return f"field {place!r}: {message}" if place else message


def meant(name: object, known: Iterable[str], otherwise: str) -> str:
    """The end of a message about an unknown name: the closest known name, or ``otherwise`` if none is close."""
    near = get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def some(names: Sequence[object], most: int = 5) -> str:
    """The first ``most`` of the names, and how many more there are: ``a, b and 3 more``."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def sentence(text: str) -> str:
    """The text with a full stop, unless it is a question."""
    return text if text.endswith("?") else f"{text}."


def fixed(path: object) -> bool:
    """Whether the file's location is fixed: true of ``params.yaml`` only."""
    return str(path) == "params.yaml"


def refusal(error: BaseException) -> str | None:
    """The message if the system refused to read or write a file; None for any other error."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, target, reason = error.args[0][0]  # from copying a folder: (source, target, reason) per file
        return f"{target} can't be written ({reason}); free some space, or use another path."
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and error.filename is None and "temporary directory" in str(error):
        return "no folder for temporary files can be written; free some space, or set TMPDIR to another folder."
    place = refused_file(error)
    if error.errno in FULL:
        return f"{place or 'a file'} can't be written ({error.strerror}); free some space and run it again."
    if error.errno in _REFUSED and place:
        remedy = "fix that" if fixed(place) else "fix that, or use another path"
        return f"{place} can't be read or written ({error.strerror}); {remedy}."
    return None


def refused_file(error: OSError) -> object:
    """The file that an error is about, None if it names none; of the two of a copy or a rename, the target."""
    return error.filename2 or error.filename


LONGEST_LINE = 2000
"""Characters of a line that a terminal is shown: an error may quote a key or an id of any length."""


def for_terminal(text: str) -> str:
    """The text with non-printable characters escaped, except line breaks: an error may quote what a model wrote.

    From the middle of a line of more than ``LONGEST_LINE`` characters, the excess is left out and counted.
    """
    return "\n".join(map(_shown, text.split("\n")))


def _shown(line: str) -> str:
    if (left_out := len(line) - LONGEST_LINE) > 0:
        half = LONGEST_LINE // 2
        line = f"{line[:half]} … ({left_out} characters) … {line[-half:]}"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def printable_line(text: str) -> str:
    """The text on one line: white space and non-printable characters, which a terminal may interpret, become spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type if it has none; 300 characters at most."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
