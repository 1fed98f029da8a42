"""How every command line of ours ends: a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from selfimprove.core.errors import UserError


def run(app: typer.Typer, commands: Sequence[str] | None = None, *mistakes: type[Exception]) -> None:
    """Run a typer app on ``commands`` (None: the process's); ``mistakes`` are reported as a ``UserError`` is.

    Raises:
        SystemExit: always; 2 after a mistake, 130 after Ctrl-C, as shells say it.
    """
    told: tuple[type[Exception], ...] = (UserError, *mistakes)
    try:
        app(commands)
    except told as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextmanager
def one_sentence() -> Iterator[None]:
    """The same around a ``main`` without typer, as a decorator or a ``with``.

    Raises:
        SystemExit: 2 after a ``UserError``.
    """
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
