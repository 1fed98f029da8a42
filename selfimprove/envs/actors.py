"""Processes of heavy environments on the nodes of a Ray cluster, each held by an actor.

Which environment does so decides by ``in_use`` when it starts its first process. An actor that dies, alone or with its
node, is not replaced here: the call fails, as one to a process of this machine does that died, and whoever called makes
another and plays the episode again.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_cluster import (
    Examination,
    Node,
    connect,
    hold,
    kill,
    living_nodes,
    pinned,
    release,
)
from selfimprove.envs.interface import EnvError

FIRST_SECONDS = 20.0
"""How long nodes may take at the start to tell what they have."""

LATER_SECONDS = 5.0
"""The same, of nodes that have joined since."""


class HostLost(EnvError):
    """The actor is gone, and what it held with it."""


class EnvironmentActor:
    """On a node: holds an object, whose methods are called one at a time."""

    def __init__(self, root: str) -> None:
        """``root``: the repository's folder."""
        os.chdir(root)
        if root not in sys.path:
            sys.path.insert(0, root)
        self._held: Any = None

    def make(self, kind: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
        """Make the object."""

        def made() -> None:
            self._held = kind(*arguments)

        return self._outcome(made)

    def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """Call a method of it."""
        return self._outcome(lambda: getattr(self._held, method)(*arguments))

    def _outcome(self, work: Callable[[], Any]) -> tuple[str, Any]:
        """("done", value), or what the other side is to raise: ("user" or "env", its words)."""
        try:
            return "done", work()
        except UserError as error:
            return "user", str(error)
        except EnvError as error:
            return "env", str(error)


class Hosted:
    """An object on some node. Threads may share it; its calls block."""

    def __init__(self, cluster: ClusterParams, name: str, kind: Callable[..., Any], *arguments: Any) -> None:
        """Start an actor on the node that has the fewest of ours, and make ``kind(*arguments)`` there.

        Args:
            name: the environment's, for messages.

        Raises:
            UserError: no cluster, no node that has what a run needs, or as ``kind``.
            EnvError: as ``kind``, or the node was lost meanwhile.
        """
        self._name, self._calls, self._open = name, 0, True
        self._ray = connect(cluster)
        hold()
        try:
            self.node = _nodes.take(self._ray)
            # Its share of CPUs is not reserved: the engines hold all of them, as on one machine.
            self._actor = pinned(self._ray, EnvironmentActor, self.node, num_cpus=0).remote(str(Path.cwd()))
            self._result(self._actor.make.remote(kind, *arguments))
            self._say(f"a process on {self.node.place}")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object and wait.

        Raises:
            HostLost: the actor died, or was closed.
            UserError, EnvError: as the method.
        """
        if not self._open:
            raise HostLost(f"{self._name}: the process has been ended")
        self._calls += 1
        return self._result(self._actor.call.remote(method, *arguments))

    def alive(self) -> bool:
        """Whether it can be called, as far as is known."""
        return self._open

    def close(self) -> None:
        """End the actor, also in mid-call. May be called again."""
        if not self._open:
            return
        self._open = False
        if hasattr(self, "_actor"):
            kill(self._ray, self._actor)
            self._say(f"{self._calls} calls on {self.node.place}")
        if hasattr(self, "node"):
            _nodes.give(self.node)
        release(self._ray)

    def _say(self, text: str) -> None:
        print(f"cluster, {self._name}: {text}", file=sys.stderr, flush=True)

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            outcome, value = self._ray.get(reference)
        except errors.RayTaskError:  # a fault of the object's code, with its traceback
            raise
        except errors.RayError as error:
            self.close()
            reason = type(error).__name__
            raise HostLost(f"{self._name}: the process on node {self.node.host} is gone ({reason})") from None
        if outcome == "user":
            raise UserError(f"node {self.node.host}: {value}")
        if outcome == "env":
            raise EnvError(value)
        return value


class _Nodes:
    """Which nodes have what a run needs, and how many of our actors each holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._examination: Examination | None = None
        self._faults: dict[str, str | None] = {}
        self._held: Counter[str] = Counter()

    def take(self, ray: Any) -> Node:
        """The node for another actor.

        Raises:
            UserError: at the start a node is unfit, or there is none.
        """
        with self._lock:
            if self._examination is None:
                self._examination = Examination(ray, Path.cwd())
            nodes = living_nodes(ray)
            new = [node for node in nodes if node.id not in self._faults]
            if new:
                first = not self._faults
                found = self._examination.faults(new, FIRST_SECONDS if first else LATER_SECONDS)
                unfit = list(dict.fromkeys(fault for fault in found.values() if fault is not None))
                if first and unfit:
                    raise UserError(f"run.cluster: {'; '.join(unfit)}.")
                self._faults |= found
            fit = [node for node in nodes if node.id in self._faults and self._faults[node.id] is None]
            if not fit:
                raise UserError("run.cluster: no node responds; check `ray status`, and run again.")
            node = min(fit, key=lambda one: self._held[one.id])
            self._held[node.id] += 1
            return node

    def give(self, node: Node) -> None:
        """An actor there has ended; after the last one nothing is known any more, as the cluster may be left."""
        with self._lock:
            self._held[node.id] -= 1
            if not self._held.total():
                self._examination, self._faults = None, {}


_nodes = _Nodes()
