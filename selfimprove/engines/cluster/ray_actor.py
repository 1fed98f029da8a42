"""What runs on a Ray cluster's nodes: an actor that holds an engine, and a task that tells what a node has.

Imported by Ray's worker processes, where nothing heavy may be imported before ``load`` has set the environment.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfimprove.engines.base import EngineStats, Request
    from selfimprove.engines.cluster.worker import WorkerSpec

Answer = tuple[int, str, Any]
"""A call's number, its outcome (``worker.Outcome``) and its value."""


class ReplicaActor:
    """Holds an engine. Requests come in with ``take``; one ``answers`` at a time waits for what has been answered."""

    def __init__(self, root: str) -> None:
        """``root``: the repository's folder."""
        os.chdir(root)
        if root not in sys.path:
            sys.path.insert(0, root)
        self._done: deque[Answer] = deque()
        self._dropped = 0
        self._some = asyncio.Event()

    async def load(self, plan: WorkerSpec, environment: Mapping[str, str]) -> tuple[str, str]:
        """Make the engine: ("ready", ""), ("refused", sentence) or ("failed", traceback)."""
        os.environ.update({**environment, **plan.environment})
        from selfimprove.core.errors import UserError
        from selfimprove.engines.cluster.worker import WorkerAnswers

        try:
            self._engine: Any = plan.make()
        except UserError as error:
            return "refused", str(error)
        except Exception:
            return "failed", traceback.format_exc()
        self._answers = WorkerAnswers(self._engine, self._tell)
        gc.freeze()  # collections need not look through what was imported
        return "ready", ""

    async def take(self, messages: Sequence[tuple[int, Request | None]]) -> None:
        """Start requests; with None, cancel them."""
        for number, request in messages:
            if request is None:
                self._answers.cancel(number)
            else:
                self._answers.start(number, request)

    async def answers(self, seen: int) -> tuple[int, list[Answer], EngineStats]:
        """What has been answered since, as soon as there is something.

        Args:
            seen: how many answers the other side has, which are forgotten here.

        Returns:
            (how many it will then have, the new ones, the engine's counts).
        """
        while self._dropped < seen:
            self._done.popleft()
            self._dropped += 1
        while not self._done:
            self._some.clear()
            await self._some.wait()
        return seen + len(self._done), list(self._done), self._engine.stats

    async def forget_prefixes(self) -> None:
        """Empty the engine's prefix cache."""
        self._engine.forget_prefixes()

    def _tell(self, number: int, outcome: str, value: Any) -> None:
        self._done.append((number, outcome, value))
        self._some.set()


def node_report() -> Callable[[str, str], dict[str, Any]]:
    """A function that tells what a node has. Ray sends it whole: a node may not have this repository."""

    def report(root: str, lock: str) -> dict[str, Any]:
        """The node's name; ``code``: hash of the repository's code at ``root``; installed versions by name."""
        import hashlib
        import os
        import platform
        import re
        import socket
        from importlib import metadata
        from pathlib import Path

        home = Path(root) / "selfimprove"
        code = hashlib.sha256()
        for file in sorted(home.rglob("*.py")):
            code.update(str(file.relative_to(home)).encode() + b"\0" + file.read_bytes())
        versions = {"python": platform.python_version()}
        for name in [*re.findall(r"(?m)^([^\s=]+)==", lock), "torch", "vllm"]:
            try:
                versions[name] = metadata.version(name).partition("+")[0]
            except metadata.PackageNotFoundError:
                continue
        return {
            "name": socket.gethostname(),
            "cpus": os.cpu_count(),
            "repository": home.is_dir(),
            "code": code.hexdigest(),
            "versions": versions,
        }

    return report
