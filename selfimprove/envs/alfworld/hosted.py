"""ALFWorld's process on a node of a Ray cluster: an actor holds it, and the interface is that of a local one."""

from typing import Any

from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.envs.actors import Hosted, HostLost
from selfimprove.envs.alfworld.process import SECONDS, AlfWorldProcess, ProcessGone

Outcome = tuple[str, Any]


class ProcessHost:
    """The actor's class: starts the process once, and ends with it."""

    def __init__(self, seconds: float) -> None:
        """Raises: UserError: ALFWorld's environment is missing on this node, or does not work."""
        self._process = AlfWorldProcess(seconds=seconds)
        self._process.start()

    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    def exchange(self, request: dict[str, Any], seconds: float) -> Outcome:
        """("done", the answer), or ("late" or "gone", the reason why there is none)."""
        try:
            return "done", self._process.exchange(request, seconds)
        except ProcessGone as error:
            return "late" if error.late else "gone", str(error)


class HostedAlfWorldProcess(AlfWorldProcess):
    """The process on a node that the cluster chooses."""

    def __init__(self, cluster: ClusterParams, seconds: float = SECONDS) -> None:
        """Does not start it. Raises: UserError: ``seconds`` is not positive."""
        super().__init__(seconds=seconds)
        self._cluster = cluster
        self._host: Hosted | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The process's id on its node."""
        return self._pid if self._host is not None and self._host.alive() else None

    def start(self) -> None:
        self.close()
        self._host = Hosted(self._cluster, "alfworld", ProcessHost, self._seconds)
        self._pid = self._host.call("pid")
        self.life += 1

    def exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._host is not None
        try:
            outcome, value = self._host.call("exchange", request, seconds)
        except HostLost as error:
            raise ProcessGone(str(error), late=False) from None
        if outcome == "done":
            return dict(value)
        self.close()
        raise ProcessGone(value, late=outcome == "late")

    def close(self) -> None:
        with self._lock:
            if self._host is not None:
                self._host.close()
                self._host = None
