"""Checkpoints besides those every ``save_steps``: by the clock, and when Ctrl-C or SIGTERM asks training to end.

A checkpoint changes no result, so when it is written may depend on time and on a person.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAVE_SECONDS = 300.0
"""At most so long between checkpoints, unless writing one takes long: then ``SAVE_RATIO`` times that."""
SAVE_RATIO = 20.0

SAVING_SECONDS = 60
"""How long other processes may take for a checkpoint before they are ended, when training is interrupted."""

INTERRUPTED = 130
"""Exit code of a training process that was asked to end."""

AGAIN_SECONDS = 2.0
"""A request to end often comes by several ways (to all processes of a job, and passed on from one to the next): what
arrives within so long of the first is the same one."""

SAVE, END = 1, 2
"""What ``SaveClock.wish`` asks for after a step: a checkpoint; or a checkpoint, and then the end."""

_asked = False
_first = -math.inf


def ask(number: int, frame: Any = None) -> None:
    """Signal handler: end after the step at hand; a second request ends at once."""
    global _asked
    repeated, before = _repeated(), _asked
    _asked = True
    if before and not repeated:
        signal.default_int_handler(number, frame)


def interrupt(number: int, frame: Any = None) -> None:
    """Signal handler: end as on Ctrl-C."""
    if not _repeated():
        signal.raise_signal(signal.SIGINT)


def _repeated() -> bool:
    """Whether this request has arrived before; else it is a new one."""
    global _first
    now = time.monotonic()
    if now - _first < AGAIN_SECONDS:
        return True
    _first = now
    return False


def asked() -> bool:
    """Whether training was asked to end."""
    return _asked


@contextmanager
def signals_ask() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ``ask`` meanwhile, where this is the thread that gets signals."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked = False  # by an earlier run in this process
    with _handled(ask, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does meanwhile, where this is the thread that gets signals."""
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
    """When the last checkpoint was written, and how long that took."""

    def __init__(self) -> None:
        self._saved, self._took = time.monotonic(), 0.0

    def wish(self, *, first: bool) -> int:
        """This process's wish after a step: 0, ``SAVE`` (by the ``first`` process's clock alone), or ``END``."""
        if _asked:
            return END
        return SAVE if first and time.monotonic() - self._saved > max(SAVE_SECONDS, SAVE_RATIO * self._took) else 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the writing of a checkpoint."""
        began = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._took = self._saved - began
