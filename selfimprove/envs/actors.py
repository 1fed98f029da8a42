"""Runs the processes of heavy environments on the nodes of a Ray cluster, each in an actor.

An environment checks ``in_use`` when it starts its first process, to decide whether it uses actors. An actor that dies,
alone or with its node, is not replaced here: the call fails, as does a call to a local process that died, and the
caller creates another actor and replays the episode.
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
"""Time limit for the nodes' examination at the start."""

LATER_SECONDS = 5.0
"""Time limit for the examination of nodes that have joined since."""


class HostLost(EnvError):
    """The actor, and with it the object that it held, is lost."""


class EnvironmentActor:
    """Runs on a node and holds an object, whose methods are called one at a time."""

    def __init__(self, root: str) -> None:
        """``root``: the repository's folder."""
        os.chdir(root)
        if root not in sys.path:
            sys.path.insert(0, root)
        self._held: Any = None

    def make(self, kind: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
        """Create the object."""

        def made() -> None:
            self._held = kind(*arguments)

        return self._outcome(made)

    def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """Call a method of the object."""
        return self._outcome(lambda: getattr(self._held, method)(*arguments))

    def _outcome(self, work: Callable[[], Any]) -> tuple[str, Any]:
        """("done", value), or the exception that the caller raises: ("user" or "env", message)."""
        try:
            return "done", work()
        except UserError as error:
            return "user", str(error)
        except EnvError as error:
            return "env", str(error)


class Hosted:
    """A proxy for an object on some node. It is thread-safe, and its calls block."""

    def __init__(self, cluster: ClusterParams, name: str, kind: Callable[..., Any], *arguments: Any) -> None:
        """Start an actor on the node with the fewest of our actors, and create ``kind(*arguments)`` there.

        Args:
            name: the environment's name, for messages.

        Raises:
            UserError: no cluster, no node with what a run needs, or raised by ``kind``.
            EnvError: raised by ``kind``, or the node was lost in the meantime.
        """
        self._name, self._calls, self._open = name, 0, True
        self._ray = connect(cluster)
        hold()
        try:
            self.node = _nodes.take(self._ray)
            # No CPUs are reserved, because the engines hold all of them, as on one machine.
            remote = self._ray.remote(EnvironmentActor)
            self._actor = pinned(remote, self.node, num_cpus=0).remote(str(Path.cwd()))
            self._result(self._actor.make.remote(kind, *arguments))
            self._say(f"a process on {self.node.place}")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object and wait for its result.

        Raises:
            HostLost: the actor died or was closed.
            UserError, EnvError: raised by the method.
        """
        if not self._open:
            raise HostLost(f"{self._name}: the process has been ended")
        self._calls += 1
        return self._result(self._actor.call.remote(method, *arguments))

    def alive(self) -> bool:
        """Whether the actor can be called, as far as is known."""
        return self._open

    def close(self) -> None:
        """Stop the actor, even during a call. Idempotent."""
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
        except errors.RayTaskError:  # an error in the object's code, with its traceback
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
    """Which nodes have what a run needs, and how many of our actors run on each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._examination: Examination | None = None
        self._faults: dict[str, str | None] = {}
        self._held: Counter[str] = Counter()

    def take(self, ray: Any) -> Node:
        """Choose the node for another actor.

        Raises:
            UserError: a node is unfit at the start, or no node is fit.
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
        """Record that an actor on ``node`` has ended; the last one resets everything, as we may leave the cluster."""
        with self._lock:
            self._held[node.id] -= 1
            if not self._held.total():
                self._examination, self._faults = None, {}


_nodes = _Nodes()
