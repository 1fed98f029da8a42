"""ScienceWorld's Java processes on the nodes of a Ray cluster: each in an actor, with the interface of a local one."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from selfimprove.engines.cluster.config import ClusterParams, in_use
from selfimprove.envs.actors import Hosted
from selfimprove.envs.interface import EnvError
from selfimprove.envs.sciworld.jvm import Jvm, JvmPool, Simulator


class JvmHost:
    """The object in the actor: a Java process, and its simulators by number."""

    def __init__(self) -> None:
        """Raises: UserError: see ``Jvm``."""
        self._jvm = Jvm()
        self._simulators: dict[int, Simulator] = {}
        self._made = 0

    def alive(self) -> int:
        """The process id; 0 if the process has ended."""
        return self._jvm.pid if self._jvm.alive() else 0

    def make(self) -> int:
        """Create a simulator and return its number. Raises: EnvError: the process failed."""
        self._made += 1
        self._simulators[self._made] = Simulator(self._jvm)
        return self._made

    def ask(self, number: int, method: str, *arguments: Any) -> Any:
        """Call a method of a ``Simulator``."""
        return getattr(self._simulators[number], method)(*arguments)

    def release(self, number: int) -> None:
        """Close and remove a simulator."""
        self._simulators.pop(number).close()


class HostedJvm:
    """A Java process on some node (``JavaProcess``)."""

    def __init__(self, cluster: ClusterParams) -> None:
        """Start the process; takes several seconds.

        Raises:
            UserError: no cluster, or raised by ``Jvm`` on the node.
            EnvError: the node was lost in the meantime.
        """
        self.host = Hosted(cluster, "sciworld", JvmHost)
        self.pid: int = self.host.call("alive")
        self.simulators = 0
        self.lock = threading.RLock()

    def alive(self) -> bool:
        try:
            return bool(self.host.call("alive"))
        except EnvError:
            return False

    @cached_property
    def scratch(self) -> Simulator:
        return HostedSimulator(self)

    def simulator(self) -> Simulator:
        return HostedSimulator(self)

    def close(self) -> None:
        self.host.close()


class HostedSimulator(Simulator):
    """A proxy for a simulator in the actor, to which all method calls are forwarded."""

    def __init__(self, jvm: HostedJvm) -> None:
        """Raises: EnvError: the process failed."""
        self.jvm = jvm
        self._number = jvm.host.call("make")
        self._closed = False
        jvm.simulators += 1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.jvm.simulators -= 1
        with suppress(EnvError):
            self.jvm.host.call("release", self._number)


def _asked(method: str) -> Callable[..., Any]:
    def ask(self: HostedSimulator, *arguments: Any) -> Any:
        return self.jvm.host.call("ask", self._number, method, *arguments)

    return ask


for _name, _member in vars(Simulator).items():
    if callable(_member) and not _name.startswith("_") and _name != "close":
        setattr(HostedSimulator, _name, _asked(_name))


def make_pool(jvms: int) -> JvmPool:
    """A pool on this machine, or on the nodes of the stage's Ray cluster."""
    cluster = in_use()
    return JvmPool(jvms, lambda: HostedJvm(cluster)) if cluster.kind == "ray" else JvmPool(jvms)
