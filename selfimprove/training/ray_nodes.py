"""Training on several nodes of a Ray cluster: a placement group reserves the nodes, and torchrun starts on each.

Ray only starts and monitors the processes; they form a group by torchrun's c10d rendezvous on the first node.
"""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from selfimprove.core.errors import UserError
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_cluster import connect, kill, living_nodes
from selfimprove.training.config import FinetuneParams
from selfimprove.training.processes import NodesRun, free_port, watch, worker_command
from selfimprove.training.stopping import SAVING_SECONDS

POLL_SECONDS = 0.5
ROOM_SECONDS = 120.0
"""How long to wait for nodes that are in use, or that may join to replace a lost one."""


class TrainingNode:
    """An actor that runs torchrun on its node. Its calls run concurrently in threads."""

    def __init__(self, root: str) -> None:
        os.chdir(root)
        self._told: list[tuple[int, int, str, dict[str, float]]] = []

    def address(self) -> tuple[str, int]:
        """This node's address, and a free port for the rendezvous."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> int:
        """Run the node's workers to completion; returns torchrun's exit code."""

        def tell(done: int, total: int, note: str, metrics: Mapping[str, float]) -> None:
            self._told.append((done, total, note, dict(metrics)))

        return watch(command, {**os.environ, **environment}, Path(log), tell)

    def stop(self) -> None:
        """Ask the node's workers to write a checkpoint and end; torchrun passes the signal on."""
        for child in psutil.Process().children():
            child.terminate()

    def told(self, since: int) -> list[tuple[int, int, str, dict[str, float]]]:
        """The progress reports from index ``since`` on."""
        return self._told[since:]


def attempt(cluster: ClusterParams, run: NodesRun) -> int:
    """See ``nodes.Attempt``."""
    ray = connect(cluster)
    group = _reserve(ray, run.params, run.threads)
    actors: list[Any] = []
    try:
        actors = _actors(ray, group, run.params, run.threads)
        return _attend(ray, actors, run)
    except ray.exceptions.RayError as error:
        print(f"finetune: a node was lost ({type(error).__name__})", file=sys.stderr, flush=True)
        return 1
    finally:
        for actor in actors:
            kill(ray, actor)
        ray.util.remove_placement_group(group)


def _reserve(ray: Any, params: FinetuneParams, threads: int) -> Any:
    """A placement group with one bundle on each of the configured number of nodes."""
    from ray.util.placement_group import placement_group

    launcher, bundle = params.launcher, _bundle(params, threads)
    deadline = time.monotonic() + ROOM_SECONDS
    while sum(one.cpus >= bundle["CPU"] and one.gpus >= bundle.get("GPU", 0) for one in living_nodes(ray)) < (
        launcher.nodes
    ):
        if time.monotonic() > deadline:
            raise UserError(
                f"launcher: {launcher.nodes} nodes with {bundle.get('GPU', 0)} GPUs and {bundle['CPU']} CPUs each are "
                f"requested, but the cluster has: {'; '.join(map(str, living_nodes(ray)))}. Lower nodes or processes, "
                "or add nodes."
            )
        time.sleep(POLL_SECONDS)
    group = placement_group([bundle] * launcher.nodes, strategy="STRICT_SPREAD")
    if not group.wait(timeout_seconds=ROOM_SECONDS):
        ray.util.remove_placement_group(group)
        raise UserError(
            f"launcher: {launcher.nodes} nodes did not become free in {ROOM_SECONDS:g} s; wait until other work on the "
            "cluster ends (`ray status` shows the usage), and run again."
        )
    return group


def _bundle(params: FinetuneParams, threads: int) -> dict[str, float]:
    processes = params.launcher.processes
    if params.device == "cuda":
        return {"CPU": 1, "GPU": processes}
    return {"CPU": processes * threads}


def _actors(ray: Any, group: Any, params: FinetuneParams, threads: int) -> list[Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = _bundle(params, threads)
    made = ray.remote(TrainingNode)
    return [
        made.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote(str(Path.cwd()))
        for index in range(params.launcher.nodes)
    ]


def _attend(ray: Any, actors: Sequence[Any], run: NodesRun) -> int:
    """Start all nodes and forward progress until all have ended; returns the first nonzero exit code, or 0.

    If a node fails, the others get ``SAVING_SECONDS`` to end. On Ctrl-C, all nodes write a checkpoint first.
    """
    places = ray.get([actor.address.remote() for actor in actors])
    endpoint = f"{places[0][0]}:{places[0][1]}"
    # Set explicitly: torchrun would infer both from host names, which other nodes may be unable to resolve.
    own = [[f"--local-addr={host}", f"--rdzv-conf=is_host={rank == 0}"] for rank, (host, _) in enumerate(places)]
    logs = [run.job_file.with_name(f"node{rank}.log" if rank else "worker.log") for rank in range(len(actors))]
    running = {
        actor.run.remote(
            worker_command(run.job_file, run.params.launcher, endpoint, own[rank]), run.environment, str(log)
        ): rank
        for rank, (actor, log) in enumerate(zip(actors, logs, strict=True))
    }
    codes: dict[int, int] = {}
    seen = 0
    deadline = math.inf
    try:
        while running and time.monotonic() < deadline:
            ended, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for one in ended:
                codes[running.pop(one)] = ray.get(one)
            if deadline == math.inf and any(codes.values()):  # the others wait for this node in a collective operation
                deadline = time.monotonic() + SAVING_SECONDS
            for step in ray.get(actors[0].told.remote(seen)):  # all nodes report the same progress
                seen += 1
                if run.progress is not None:
                    run.progress(*step)
    except KeyboardInterrupt:
        for actor in actors:
            actor.stop.remote()
        ray.wait(list(running), num_returns=len(running), timeout=SAVING_SECONDS)
        raise
    return next((code for _, code in sorted(codes.items()) if code), 0)
