"""The one exception that a user is meant to see, and the short form of others."""


class UserError(Exception):
    """Something the user can correct: one sentence that names the place (file, line, key) and the remedy.

    The stage runner prints the sentence and exits with code 2; no traceback, and nothing already done is lost.
    """


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, 300 characters at most; the exception's type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
