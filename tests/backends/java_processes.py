"""Finds the Java processes that a process has started."""

from __future__ import annotations

import psutil


def java_of(pid: int) -> list[int]:
    """Ids of the running Java processes that ``pid`` has started, directly or indirectly."""
    found = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE and child.name() == "java"]
