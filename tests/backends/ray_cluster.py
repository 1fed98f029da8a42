"""Nodes and processes of the Ray cluster that the tests start on this machine; its fixture is in conftest.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from selfimprove.engines.cluster.ray_cluster import living_nodes

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
WAIT = 120.0


def processes_of(actor: str) -> list[psutil.Process]:
    """The processes of the cluster's actors of one class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{actor}"):
                found.append(process)
    return found


def actors() -> list[psutil.Process]:
    """The replicas' processes."""
    return processes_of("ReplicaActor")


def has_nodes(ray: Any, count: int) -> bool:
    return len(living_nodes(ray)) == count


@contextmanager
def node_of_its_own(command: str, joined: Callable[[], bool]) -> Iterator[None]:
    """A node in its own mount namespace, restarted until it joins: Ray gives each start 30 s."""
    shell = ["unshare", "--mount", "sh", "-c", command]
    begin = lambda: subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: E731
    node, deadline = begin(), time.monotonic() + WAIT
    try:
        while not joined():
            assert time.monotonic() < deadline
            if node.poll() is not None:
                node = begin()
            time.sleep(0.2)
        yield
    finally:
        node.terminate()
        node.wait(timeout=60)
