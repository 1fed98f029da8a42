"""Code that runs on a Ray cluster's nodes: an actor that holds an engine, and a task that describes its node.

Imported by Ray's worker processes, which must not import anything heavy before ``load`` has set the environment.
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
    """Holds an engine. ``take`` receives requests; a single pending ``answers`` call waits for results."""

    def __init__(self, root: str) -> None:
        """``root``: the repository's folder."""
        os.chdir(root)
        if root not in sys.path:
            sys.path.insert(0, root)
        self._done: deque[Answer] = deque()
        self._dropped = 0
        self._some = asyncio.Event()

    async def load(self, spec: WorkerSpec, environment: Mapping[str, str]) -> tuple[str, str]:
        """Create the engine; returns ("ready", ""), ("refused", sentence) or ("failed", traceback)."""
        os.environ.update({**environment, **spec.environment})
        from selfimprove.core.errors import UserError
        from selfimprove.engines.cluster.worker import WorkerAnswers

        try:
            self._engine: Any = spec.make()
        except UserError as error:
            return "refused", str(error)
        except Exception:
            return "failed", traceback.format_exc()
        self._answers = WorkerAnswers(self._engine, self._tell)
        gc.freeze()  # excludes imported objects from garbage collection
        return "ready", ""

    async def take(self, messages: Sequence[tuple[int, Request | None]]) -> None:
        """Start requests; a request of None cancels the call of that number."""
        for number, request in messages:
            if request is None:
                self._answers.cancel(number)
            else:
                self._answers.start(number, request)

    async def answers(self, seen: int) -> tuple[int, list[Answer], EngineStats]:
        """Wait until there are unread answers, and return them.

        Args:
            seen: how many answers the caller has received in total; these are dropped here.

        Returns:
            (the new total, the new answers, the engine's counts).
        """
        while self._dropped < seen:
            self._done.popleft()
            self._dropped += 1
        while not self._done:
            self._some.clear()
            await self._some.wait()
        return seen + len(self._done), list(self._done), self._engine.stats

    def _tell(self, number: int, outcome: str, value: Any) -> None:
        self._done.append((number, outcome, value))
        self._some.set()


def node_report() -> Callable[[str, str], dict[str, Any]]:
    """A function that describes a node. Ray sends its code, since a node may not have this repository."""

    def report(root: str, lock: str) -> dict[str, Any]:
        """The host's name; ``code``: hash of the repository's code at ``root``; installed versions by package."""
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
