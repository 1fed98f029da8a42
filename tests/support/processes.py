"""Starts processes for tests, and checks whether they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def wait_until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until a condition holds; the time limit only ends a broken test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def gone(pid: int, seconds: float = 30.0) -> bool:
    """Whether a process ends within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def child_of(owner: str, end: str) -> int:
    """Run an owner that starts a process, and return that process's id after the owner has ended.

    Args:
        owner: a program that prints the process's id and gets ``end`` as its argument.
        end: how the owner ends: it ``raises``, ``exits`` (with code 3), or is killed while ``idle`` or ``busy``.
    """
    with subprocess.Popen(
        [sys.executable, "-c", owner, end], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if end in ("idle", "busy"):
            assert psutil.pid_exists(pid)
            time.sleep(0.3)
            process.kill()
        assert process.wait(timeout=60) == {"raises": 1, "exits": 3}.get(end, -signal.SIGKILL)
    return pid
