"""The connection to a Ray cluster: joins it, lists its nodes, and checks that they have what a run needs."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError, some
from selfimprove.engines.cluster.config import ClusterParams, sent
from selfimprove.engines.cluster.ray_actor import node_report

CONNECT_SECONDS = 5.0
LOCK = Path("requirements/runtime.lock")
OBJECT_STORE = 100 << 20
"""Bytes, for a single-machine cluster: requests and answers are small and consumed immediately."""


@dataclass(frozen=True)
class Node:
    """A living node: Ray's id, its host's name, and its CPUs and GPUs."""

    id: str
    host: str
    cpus: float
    gpus: float

    def room(self, cpus: float, gpus: float) -> int:
        """The number of replicas that fit."""
        return int(min(self.cpus // cpus if cpus else 1 << 20, self.gpus // gpus if gpus else 1 << 20) + 1e-9)

    @property
    def place(self) -> str:
        """Its label in counts; two nodes may share a host."""
        return f"{self.host}/{self.id[:6]}"

    def __str__(self) -> str:
        return f"{self.host} ({self.id[:8]}): {self.cpus:g} CPUs, {self.gpus:g} GPUs"


def connect(cluster: ClusterParams) -> Any:
    """Join the cluster, unless this process already has; returns the module ``ray``.

    Call from the main thread: the processes of a single-machine cluster end with the thread that started them.

    Raises:
        UserError: Ray is not installed, or there is no cluster at the address.
    """
    if find_spec("ray") is None:
        raise UserError(
            "run.cluster: Ray is not installed in this environment; run `make env-ray`, then start with `CLUSTER=ray "
            "make repro` (docs/scale.md)."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default Ray's workers run at lower priority
    import ray

    if ray.is_initialized():
        return ray
    address = cluster.address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    _check_address(address)
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        settings |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        with _signals_kept():
            ray.init(**settings)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        remedy = (
            "start one with `ray start --head`, set run.cluster.address to local or to host:port of its head, or, if "
            "it uses token authentication, set RAY_AUTH_MODE=token here too"
        )
        raise UserError(f"run.cluster.address: {address}: no Ray cluster there ({said[:200]}); {remedy}.") from None
    return ray


def _check_address(address: str) -> None:
    """Fail fast: Ray itself waits a minute for an unreachable head.

    Raises:
        UserError: nothing listens at host:port.
    """
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"run.cluster.address: {address!r} is not auto, local or host:port; fix it.")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"run.cluster.address: no Ray cluster at {address} ({error.strerror or error}); start one there with "
            "`ray start --head`, or fix the address."
        ) from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces: a stage must save its progress on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def living_nodes(ray: Any) -> list[Node]:
    """The cluster's living nodes, ordered by id."""
    return sorted(
        (
            Node(one["NodeID"], one["NodeManagerHostname"], *(one["Resources"].get(key, 0.0) for key in ("CPU", "GPU")))
            for one in ray.nodes()
            if one["Alive"]
        ),
        key=lambda node: node.id,
    )


def environment_of_replicas(threads: int) -> dict[str, str]:
    """The environment variables that replicas inherit from this process; ``threads``: per replica."""
    return sent(os.environ) | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Examination:
    """Compares the code and package versions of nodes with those of this machine."""

    def __init__(self, ray: Any, root: Path) -> None:
        """``root``: the repository's folder, here and on every node."""
        self._ray, self._root = ray, root
        self._lock = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
        self._report = node_report()
        self._here = self._report(str(root), self._lock)
        self._asked: dict[Any, Node] = {}

    def faults(self, new: Sequence[Node], seconds: float) -> dict[str, str | None]:
        """Each node's problem, by id: no repository, different code, or different versions; None: no problem.

        Args:
            new: nodes that have not been checked, or whose result has not been returned yet.
            seconds: how long to wait. Nodes that do not answer in time, because they have just died or are starting,
                are reported by a later call.
        """
        ray, waiting = self._ray, {node.id for node in self._asked.values()}
        remote = ray.remote(self._report)
        for node in new:
            if node.id not in waiting:
                self._asked[pinned(remote, node, num_cpus=0).remote(str(self._root), self._lock)] = node
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=seconds)
        found: dict[str, str | None] = {}
        for answer in answered:
            node = self._asked.pop(answer)
            with suppress(ray.exceptions.RayError):  # checked again if the node is alive
                found[node.id] = _difference(node, self._here, ray.get(answer), self._root)
        return found


def _difference(node: Node, here: dict[str, Any], there: dict[str, Any], root: Path) -> str | None:
    if not there["repository"]:
        return f"node {node.host} has no repository at {root}; put it on a path that all nodes share"
    if there["code"] != here["code"]:
        return f"node {node.host} has different code in {root}/selfimprove than this machine; use one commit on both"
    names = sorted({*here["versions"], *there["versions"]})
    mine, other = here["versions"], there["versions"]
    differ = [
        f"{name} {other.get(name, 'not installed')} (here {mine.get(name, 'not installed')})"
        for name in names
        if mine.get(name) != other.get(name)
    ]
    if differ:
        return f"node {node.host} has different package versions: {some(differ)}; install the same locks on all nodes"
    return None


def pinned(remote: Any, node: Node, **options: Any) -> Any:
    """The actor class or task, which then runs only on that node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False), **options)


@dataclass(eq=False)
class SharedGpu:
    """A GPU shared by one replica of each of a stage's engines.

    A placement group reserves the whole GPU: Ray packs fractions, and would put two replicas of one engine on one GPU.

    Attributes:
        loading: held while a replica loads its model, because vLLM measures its memory use meanwhile.
    """

    group: Any
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def place(self, ray: Any, kind: type, share: float) -> Any:
        """An actor class whose actors get ``share`` of this GPU."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=0)
        return ray.remote(kind).options(scheduling_strategy=strategy, num_cpus=0, num_gpus=share)


_gpus: dict[tuple[str, int], SharedGpu] = {}
"""This process's shared GPUs, by node and number."""


def shared_gpu(node: Node, number: int, cpus: int) -> SharedGpu:
    """The node's GPU of that number, with ``cpus`` CPUs; the stage's engines all get the same object."""
    from ray.util.placement_group import placement_group

    if (node.id, number) not in _gpus:
        on_the_node = [{"ray.io/node-id": node.id}]
        group = placement_group([{"CPU": cpus, "GPU": 1}], bundle_label_selector=on_the_node)
        _gpus[node.id, number] = SharedGpu(group)
    return _gpus[node.id, number]


def forget_gpus_of_lost_nodes(ray: Any, living: Sequence[Node]) -> None:
    """Release the reservations of GPUs on nodes that have died."""
    there = {node.id for node in living}
    for place in [place for place in _gpus if place[0] not in there]:
        ray.util.remove_placement_group(_gpus.pop(place).group)


def kill(ray: Any, actor: Any) -> None:
    """Kill an actor, if the cluster is still connected."""
    with suppress(Exception):
        if ray.is_initialized():  # otherwise Ray would start a cluster for this call
            ray.kill(actor)


_holders = 0


def hold() -> None:
    """Keep the connection open; called by every owner of actors."""
    global _holders
    _holders += 1


def release(ray: Any) -> None:
    """Counterpart of ``hold``: the last owner disconnects."""
    global _holders
    _holders -= 1
    if _holders == 0:
        _gpus.clear()  # their placement groups end with the connection
        ray.shutdown()
