"""How every command line of ours ends: a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from selfimprove.core.errors import UserError, for_terminal, refusal

if TYPE_CHECKING:
    import typer

INTERRUPTED, NO_READER = 130, 141
"""Exit codes after Ctrl-C, and where what reads the output (``head``) has ended, as shells say them."""


def run(app: typer.Typer, commands: Sequence[str] | None = None, *mistakes: type[Exception]) -> None:
    """Run a typer app on ``commands`` (None: the process's); ``mistakes`` are reported as a ``UserError`` is.

    Raises:
        SystemExit: always; 2 after a mistake, 130 after Ctrl-C, as shells say it.
    """
    import typer

    _write_what_can_be()
    told: tuple[type[Exception], ...] = (UserError, *mistakes)
    try:
        raise SystemExit(app(commands, standalone_mode=False))
    except typer.TyperException as error:
        typer.echo(for_terminal(_misuse(error)), err=True)
        raise SystemExit(error.exit_code) from None
    except told as error:
        typer.echo(for_terminal(str(error)), err=True)
        raise SystemExit(2) from None
    except OSError as error:
        _end_if_refused(error)
        raise
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def one_sentence() -> Iterator[None]:
    """The same around a ``main`` without typer, as a decorator or a ``with``.

    Raises:
        SystemExit: 2 after a ``UserError``, 130 after Ctrl-C, 141 if nobody reads the output any more.
    """
    _write_what_can_be()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(for_terminal(str(error)), file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        raise SystemExit(NO_READER) from None
    except OSError as error:
        _end_if_refused(error)
        raise


def _misuse(error: typer.TyperException) -> str:
    """The sentence on a word of the command line that does not fit; a variable of make is named as it was typed."""
    import typer

    if not (isinstance(error, typer.BadParameter) and error.param and error.message):  # unknown, or missing
        said = error.format_message().rstrip(".")
        return said if said.endswith("?") or not said else f"{said}; --help lists all options."
    place, variable = error.param.opts[-1], str(error.param.name).upper()
    if os.environ.get(variable) in sys.argv:  # make exports what it was given, and its recipe hands it on
        place = f"{variable}={os.environ[variable]}"
    said = error.message.removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
    return f"{place}: {said[0].lower()}{said[1:]}; fix it."


def _end_if_refused(error: OSError) -> None:
    """End with one sentence and exit code 2 if the system would not read or write a file; else do nothing."""
    sentence = refusal(error)
    if sentence is not None:
        print(for_terminal(sentence), file=sys.stderr)
        raise SystemExit(2) from None


def _write_what_can_be() -> None:
    """A character that the terminal's encoding lacks (± in an ASCII one) is shown as a question mark."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
