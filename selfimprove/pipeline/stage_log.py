"""``.scratch/logs/<stage>.log``: what a stage printed on standard error, tracebacks included, also of earlier runs."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

LOGS = Path(".scratch/logs")
MOST_BYTES = 1 << 20
"""A log that is larger is begun anew."""


class _Both:
    """Standard error that is also written to a file. What moves the cursor (progress bars) is not kept."""

    def __init__(self, shown: TextIO, file: IO[str]) -> None:
        self._shown, self._file = shown, file

    def write(self, text: str) -> int:
        if "\x1b" not in text and "\r" not in text:
            self._file.write(text)
            self._file.flush()
        return self._shown.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


@contextmanager
def kept_log(stage: str) -> Iterator[None]:
    """Keep what is printed on standard error inside the block, and the traceback that ends it, in the stage's log."""
    path = LOGS / f"{stage.replace('/', '-')}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "w" if path.is_file() and path.stat().st_size > MOST_BYTES else "a"
    with path.open(mode, encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {stage}\n")
        file.flush()
        before = sys.stderr
        sys.stderr = _Both(before, file)  # type: ignore[assignment]
        try:
            yield
        except Exception:  # Python prints its traceback only when the process ends
            traceback.print_exc(file=file)
            raise
        finally:
            sys.stderr = before
