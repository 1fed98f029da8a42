"""Progress of long work: a rich bar on a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_SECONDS = 5.0


class StageProgress:
    """Counts finished units of a stage. Use as a context; call ``advance`` per unit, ``note`` for running figures."""

    def __init__(self, label: str, total: int, *, done: int = 0) -> None:
        self._label, self._total, self._done = label, total, done
        self._note = ""
        self._started = self._printed = time.monotonic()
        self._rich: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._rich = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console, transient=True,
            )  # fmt: skip
            self._task = self._rich.add_task(label, total=total, completed=done, note="")
        elif done:
            self._line(f"resumed: {done} of {total} already done")

    def advance(self, units: int = 1) -> None:
        """Count finished units."""
        self._done += units
        if self._rich:
            self._rich.update(self._task, completed=self._done, note=self._note)
        elif time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            rate = self._done / max(self._printed - self._started, 1e-9)
            self._line(f"{self._done}/{self._total} ({rate:.1f}/s) {self._note}".rstrip())

    def reach(self, done: int, total: int, note: str = "") -> None:
        """For work that counts itself: ``done`` of ``total`` so far."""
        self._total, self._note = total, note
        if self._rich:
            self._rich.update(self._task, total=total)
        self.advance(done - self._done)

    def note(self, text: str) -> None:
        """Show a few running figures beside the count."""
        self._note = text

    def __enter__(self) -> StageProgress:
        if self._rich:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich:
            self._rich.stop()
        if isinstance(error, Exception):
            return  # what went wrong is said once, by whoever catches it
        seconds = time.monotonic() - self._started
        self._line(f"{self._done}/{self._total} in {seconds:.1f} s {self._note}".rstrip())

    def _line(self, text: str) -> None:
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)
