"""ALFWorld's process on a node of a Ray cluster: held by an actor, asked as one on this machine is."""

from typing import Any

from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.envs.actors import Hosted, HostLost
from selfimprove.envs.alfworld.process import SECONDS, AlfWorldProcess, ProcessGone

Outcome = tuple[str, Any]


class ProcessHost:
    """In the actor: the process, which is started once. When it ends, so does the actor."""

    def __init__(self, seconds: float) -> None:
        """Raises: UserError: ALFWorld's environment is missing on this node, or does not work."""
        self._process = AlfWorldProcess(seconds=seconds)
        self._process.start()

    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    def exchange(self, request: dict[str, Any], seconds: float) -> Outcome:
        """("done", the answer), or ("late" or "gone", why there is none)."""
        try:
            return "done", self._process.exchange(request, seconds)
        except ProcessGone as error:
            return "late" if error.late else "gone", str(error)


class HostedAlfWorldProcess(AlfWorldProcess):
    """The process on some node."""

    def __init__(self, cluster: ClusterParams, seconds: float = SECONDS) -> None:
        """Starts nothing yet. Raises: UserError: no time for an answer."""
        super().__init__(seconds=seconds)
        self._cluster = cluster
        self._host: Hosted | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """There."""
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
