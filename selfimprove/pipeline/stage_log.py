"""Writes ``.scratch/logs/<stage>.log``: a stage's standard error with tracebacks, including earlier runs."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from selfimprove.core.errors import UserError

LOGS = Path(".scratch/logs")
MOST_BYTES = 1 << 20
"""A larger log is overwritten by the next run."""


class _Both:
    """Standard error, duplicated to a file except for cursor movements (progress bars).

    Its reader may exit before the stage: Ctrl-C also ends the ``tee`` of ``make repro 2>&1 | tee log``. The stage then
    goes on with the file alone, and saves its work.
    """

    def __init__(self, shown: TextIO, log: _Log) -> None:
        self._shown, self._log = shown, log

    def write(self, text: str) -> int:
        if "\x1b" not in text and "\r" not in text:
            self._log.write(text)
        with suppress(BrokenPipeError):
            self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._shown.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


class _Log:
    """The log file. It is optional: if it can't be written (a full disk), this is reported once."""

    def __init__(self, path: Path, stage: str) -> None:
        self._path, self._stage = path, stage
        self._file: IO[bytes] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = "wb" if path.is_file() and path.stat().st_size > MOST_BYTES else "ab"
            self._file = path.open(mode, buffering=0)  # unbuffered: closing has nothing to write
        except OSError as error:
            self._give_up(error)

    def write(self, text: str) -> int:
        if self._file is not None:
            try:
                self._file.write(text.encode("utf-8", "backslashreplace"))
            except OSError as error:
                self.close()
                self._give_up(error)
        return len(text)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        print(
            f"{self._stage}: the log {self._path} can't be written ({error.strerror}); the stage goes on without it.",
            file=sys.__stderr__,
        )


@contextmanager
def kept_log(stage: str) -> Iterator[None]:
    """Copy the block's standard error, and the traceback of an exception that ends it, to the stage's log.

    So is the traceback of the exception that a ``UserError`` reports in one sentence (``raise … from error``).
    """
    with closing(_Log(LOGS / f"{stage.replace('/', '-')}.log", stage)) as log:
        log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {stage}\n")
        before = sys.stderr
        sys.stderr = _Both(before, log)  # type: ignore[assignment]
        try:
            yield
        except Exception:  # Python prints the traceback only after this block
            traceback.print_exc(file=log)  # type: ignore[arg-type]
            raise
        except SystemExit as end:
            said = end.__context__  # the UserError whose sentence was printed
            if isinstance(said, UserError) and said.__cause__ is not None:
                traceback.print_exception(said.__cause__, file=log)  # type: ignore[arg-type]
            raise
        finally:
            sys.stderr = before
