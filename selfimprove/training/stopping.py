"""Checkpoints in addition to those every ``save_steps``: by the clock, and when Ctrl-C or SIGTERM requests a stop.

Checkpoints do not affect results, so their timing may depend on the clock and on user input.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAVE_SECONDS = 300.0
"""Longest time between checkpoints, or ``SAVE_RATIO`` times the duration of writing one, if that is longer."""
SAVE_RATIO = 20.0

SAVING_SECONDS = 60
"""How long other processes may take to write a checkpoint after an interrupt before they are killed."""

INTERRUPTED = 130
"""Exit code of a training process that was asked to stop."""

AGAIN_SECONDS = 2.0
"""Signals within this time of the first count as the same stop request, which often arrives in several ways (sent to
all processes of a job, and forwarded between them)."""

SAVE, END = 1, 2
"""Values of ``SaveClock.wish`` after a step: write a checkpoint; write one, then stop."""

_asked = False
_first = -math.inf


def ask(number: int, frame: Any = None) -> None:
    """Signal handler: stop after the current step; a second request stops immediately."""
    global _asked
    repeated, before = _repeated(), _asked
    _asked = True
    if before and not repeated:
        signal.default_int_handler(number, frame)


def interrupt(number: int, frame: Any = None) -> None:
    """Signal handler: act as on Ctrl-C."""
    if not _repeated():
        signal.raise_signal(signal.SIGINT)


def _repeated() -> bool:
    """Whether this signal belongs to a request that has already arrived."""
    global _first
    now = time.monotonic()
    if now - _first < AGAIN_SECONDS:
        return True
    _first = now
    return False


def asked() -> bool:
    """Whether training was asked to stop."""
    return _asked


@contextmanager
def signals_ask() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM with ``ask`` within the context, if this is the main thread."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked = False  # may be set by an earlier run in this process
    with _handled(ask, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C within the context, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(interrupt, signal.SIGTERM):
        yield


@contextmanager
def _handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    global _first
    _first = -math.inf
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


class SaveClock:
    """Tracks when the last checkpoint was written and how long that took."""

    def __init__(self) -> None:
        self._saved, self._took = time.monotonic(), 0.0

    def wish(self, *, first: bool) -> int:
        """This process's wish after a step: 0, ``SAVE`` (only by the ``first`` process's clock), or ``END``."""
        if _asked:
            return END
        return SAVE if first and time.monotonic() - self._saved > max(SAVE_SECONDS, SAVE_RATIO * self._took) else 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Context around the writing of a checkpoint."""
        began = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._took = self._saved - began
