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
        SystemExit: always; 2 after an invalid argument, otherwise as ``one_sentence``.
    """
    import typer

    with one_sentence():
        try:
            raise SystemExit(app(commands, standalone_mode=False))
        except typer.TyperException as error:
            print(for_terminal(_misuse(error)), file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        except mistakes as error:
            raise UserError(str(error)) from None


@contextmanager
def one_sentence() -> Iterator[None]:
    """Report a user's mistake within a ``main``, as a decorator or context manager.

    Raises:
        SystemExit: 2 after a ``UserError`` or a file that can't be read or written, 130 after Ctrl-C, 141 if the reader
            of the output has exited.
    """
    _open_streams()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal's encoding lacks, such as ± in ASCII
    try:
        try:
            yield
        finally:
            print(end="", flush=True)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        raise SystemExit(NO_READER) from None
    except (UserError, OSError) as error:
        sentence = str(error) if isinstance(error, UserError) else refusal(error)
        if sentence is None:
            raise
        print(for_terminal(sentence), file=sys.stderr)
        raise SystemExit(2) from None


def _open_streams() -> None:
    """Open standard streams that were closed before the start, as by ``setsid make repro <&- >&- 2>&-``.

    Python has None in their place, and the next files opened would get their numbers, and thus what others print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, so the stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


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
