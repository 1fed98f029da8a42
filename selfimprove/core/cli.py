"""Exit behaviour shared by all command lines: a user's mistake is reported in one sentence with exit code 2."""

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
"""Exit codes after Ctrl-C and after the reader of the output (such as ``head``) has exited, by shell convention."""


def run(app: typer.Typer, commands: Sequence[str] | None = None, *mistakes: type[Exception]) -> None:
    """Run a typer app on ``commands`` (None: ``sys.argv``); exceptions in ``mistakes`` are reported like a UserError.

    Raises:
        SystemExit: always; 2 after a mistake, 130 after Ctrl-C.
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
    """The same for a ``main`` without typer, as a decorator or context manager.

    Raises:
        SystemExit: 2 after a ``UserError``, 130 after Ctrl-C, 141 if the reader of the output has exited.
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        raise SystemExit(NO_READER) from None
    except OSError as error:
        _end_if_refused(error)
        raise


def _misuse(error: typer.TyperException) -> str:
    """The message for an invalid command-line argument; a make variable is named as the user typed it."""
    import typer

    if not (isinstance(error, typer.BadParameter) and error.param and error.message):  # unknown, or missing
        said = error.format_message().rstrip(".")
        return said if said.endswith("?") or not said else f"{said}; --help lists all options."
    place, variable = error.param.opts[-1], str(error.param.name).upper()
    if os.environ.get(variable) in sys.argv:  # make exports its variables, and the recipe passes them on
        place = f"{variable}={os.environ[variable]}"
    said = error.message.removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
    return f"{place}: {said[0].lower()}{said[1:]}; fix it."


def _end_if_refused(error: OSError) -> None:
    """Exit with one sentence and code 2 if the system refused to read or write a file; otherwise do nothing."""
    sentence = refusal(error)
    if sentence is not None:
        print(for_terminal(sentence), file=sys.stderr)
        raise SystemExit(2) from None


def _write_what_can_be() -> None:
    """Show characters that the terminal's encoding lacks (such as ± in ASCII) as question marks."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
