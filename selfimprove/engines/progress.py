"""Progress of long work: a rich bar on a terminal, periodic plain lines in a log, and tracked curves."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from selfimprove.core.tracking import Tracker
from selfimprove.engines.base import Engine

PLAIN_SECONDS = 5.0
TRACKED_SECONDS = 5.0


class StageProgress:
    """Counts finished units of a stage. Use as a context manager; call ``advance`` per unit."""

    def __init__(self, label: str, total: int, *, tracker: Tracker | None) -> None:
        """``tracker``: receives the curves."""
        self._label, self._total, self._done = label, total, 0
        self._note, self._tracker = "", tracker
        self._engines: Mapping[str, Engine] | None = None
        self._tokens: dict[str, float] = {}
        self._started = self._printed = self._tracked = time.monotonic()
        self._rich: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._rich = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console, transient=True,
            )  # fmt: skip
            self._task = self._rich.add_task(label, total=total, note="")

    def advance(self, units: int = 1) -> None:
        """Count finished units."""
        self._done += units
        if self._engines is not None and time.monotonic() - self._tracked > TRACKED_SECONDS:
            self._track()
        if self._rich:
            self._rich.update(self._task, completed=self._done, note=self._note)
        elif time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            rate = self._done / max(self._printed - self._started, 1e-9)
            self._line(f"{self._done}/{self._total} ({rate:.1f}/s) {self._note}".rstrip())

    def reach(self, done: int, total: int, note: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """For work with its own counter: ``done`` of ``total`` so far; ``metrics`` become points of curves."""
        self._total, self._note = total, note
        if metrics and self._tracker:
            self._tracker.log(done, metrics)
        if self._rich:
            self._rich.update(self._task, total=total)
        self.advance(done - self._done)

    def watch(self, engines: Mapping[str, Engine]) -> None:
        """Track the tokens that these engines process from now on."""
        self._engines = engines
        self._tokens, self._tracked = self._counts(), time.monotonic()

    def _counts(self) -> dict[str, float]:
        stats = [engine.stats for engine in (self._engines or {}).values()]
        return {
            "generated_tokens": sum(one.generated_tokens for one in stats),
            "prompt_tokens": sum(one.prompt_tokens for one in stats),
        }

    def _track(self) -> None:
        """Log a point of the curves: episodes done, and tokens per second since the previous point."""
        if self._tracker is None:
            return
        before, since = self._tokens, self._tracked
        self._tokens, self._tracked = self._counts(), time.monotonic()
        seconds = max(self._tracked - since, 1e-9)
        rates = {f"{name}_per_second": (count - before[name]) / seconds for name, count in self._tokens.items()}
        self._tracker.log(self._done, {"episodes": self._done, **rates})

    def __enter__(self) -> StageProgress:
        if self._rich:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich:
            self._rich.stop()
        if self._engines is not None:
            self._track()
        if isinstance(error, Exception) or not self._total:
            return  # the error is reported by whoever catches it; work that never began gets no line
        seconds = time.monotonic() - self._started
        self._line(f"{self._done}/{self._total} in {seconds:.1f} s {self._note}".rstrip())

    def _line(self, text: str) -> None:
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)
