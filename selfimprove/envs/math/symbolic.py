"""Decides whether two LaTeX answers are algebraically equal: math-verify in a separate process with a CPU time limit.

Model-written LaTeX can hang the algebra system (``9^{9^{9^9}}``) in ways that no exception and no thread can stop. The
comparison therefore runs in a worker process, which a profiling timer without a handler kills after a given *CPU* time,
even inside C code, so that a timeout does not depend on the machine's load. The next comparison gets a fresh worker.
This file contains both sides: run as a script, it is the worker and imports nothing from this package.

This does not protect against code execution: math-verify parses LaTeX by grammar, but passes the numbers in it, and
arithmetic such as ``1/2 + 3``, to sympy's parser, which ends in ``eval``. It is trusted to pass nothing else: no name
in the text gets there (a test tries some).
"""

import json
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

MEMORY = 4 << 30
"""A worker's address space limit in bytes; exceeding it counts as an error, which means "not equivalent".
On macOS, which refuses to set one, only the CPU time is limited."""

_START_SECONDS = 120.0


class SymbolicChecker:
    """Queries one worker, which starts with the first comparison and is replaced if it dies. Thread-safe.

    Attributes:
        timeouts: comparisons that exceeded ``timeout`` seconds of CPU time ("not equivalent").
        errors: comparisons that math-verify could not parse or that took too much memory (likewise).
    """

    def __init__(self, timeout: float) -> None:
        self.timeouts = 0
        self.errors = 0
        self._timeout = timeout
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._finalizer: Callable[[], Any] = lambda: None
        self._answers = lru_cache(maxsize=1 << 16)(self._ask)

    def equivalent(self, gold: str, answer: str) -> bool:
        """Whether math-verify considers ``answer`` equal to ``gold``. Results are cached."""
        with self._lock:
            return self._answers(gold, answer)

    def close(self) -> None:
        """Stop the worker. Another comparison would start a new one."""
        with self._lock:
            self._stop()

    def _ask(self, gold: str, answer: str) -> bool:
        worker = self._start()
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps([gold, answer, self._timeout]) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:  # it was killed from outside between two comparisons
            self._stop()
            return self._ask(gold, answer)
        # The kernel's timer measures CPU time; this longer limit only guards against a worker that sleeps.
        line = _read_line(worker, 20 * self._timeout + 10)
        if not line:
            self.timeouts += 1
            self._stop()
            return False
        verdict = json.loads(line)
        self.errors += verdict is None
        return verdict is True

    def _start(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self._stop()
        # -P keeps this file's folder out of sys.path, so that no module in it can shadow the standard library.
        self._worker = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._finalizer = weakref.finalize(self, _end, self._worker)
        if not _read_line(self._worker, _START_SECONDS):
            from selfimprove.core.errors import UserError

            self._stop()
            raise UserError("equiv: extended needs the package math-verify; run make setup, or set equiv: hendrycks.")
        return self._worker

    def _stop(self) -> None:
        self._finalizer()
        self._worker = None


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def _read_line(worker: subprocess.Popen[str], seconds: float) -> str:
    """One line from the worker; empty if it died or did not answer in time."""
    assert worker.stdout is not None
    ready, _, _ = select.select([worker.stdout], [], [], seconds)
    return worker.stdout.readline() if ready else ""


_BASED = re.compile(r"\s*(-?[0-9A-Za-z.,\s]*[0-9A-Za-z])\s*_\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*")
"""A number in a base, such as 3032_5 or 11_{12}."""


def _compare(gold: str, answer: str) -> bool:
    bases = [found[2] or found[3] for text in (gold, answer) if (found := _BASED.fullmatch(text))]
    if len(set(bases)) > 1:  # math-verify ignores a subscript
        return False
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    sides = [
        parse(
            f"${text}$",
            extraction_config=[LatexExtractionConfig(), ExprExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=0,
            raise_on_error=True,
        )
        for text in (gold, answer)
    ]
    return all(sides) and bool(verify(*sides, timeout_seconds=0, raise_on_error=True))


def _serve() -> None:
    """The worker: reads lines [gold, answer, seconds], writes a line true, false or null (an error) for each."""
    import logging
    import os

    logging.disable(logging.CRITICAL)
    with suppress(ValueError):  # macOS does not limit it, and elsewhere a lower limit may be in force
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's output must not be mistaken for a reply
    _compare("1", "1")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        gold, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            verdict: bool | None = _compare(gold, answer)
        except Exception:  # an algebra system may raise anything on unusual input, even MemoryError
            verdict = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    _serve()
