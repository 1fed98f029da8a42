"""The one exception a user is meant to see."""


class UserError(Exception):
    """Something the user can mend: one sentence that names the place (file, line, key) and the remedy.

    The stage runner prints the sentence and exits with code 2; no traceback, and nothing already done is lost.
    """
