"""Training on several nodes: restarts after the loss of a node. The cluster's module starts the processes.

When a node is lost, the others are terminated. Training then restarts on the available nodes from its newest complete
checkpoint. On CPUs, the result is bitwise the same as without interruption.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

from selfimprove.engines.cluster.config import ClusterParams, sent
from selfimprove.training.checkpoints import drop_damaged
from selfimprove.training.processes import NodesRun, logs, reported

Attempt = Callable[[ClusterParams, NodesRun], int]
"""Starts the processes on all nodes and waits for them: ``ray_nodes.attempt``, ``slurm_nodes.attempt``.

Returns 0, or the exit code of a failed node. Raises ``UserError``: no cluster, or too few nodes with free resources.
"""


def run_on_nodes(cluster: ClusterParams, run: NodesRun) -> int:
    """Run an ``Attempt``, and repeat it up to ``max_restarts`` times unless a worker has reported an error."""
    attempt: Attempt
    if cluster.kind == "slurm":
        from selfimprove.training.slurm_nodes import attempt
    else:
        from selfimprove.training.ray_nodes import attempt

    run = replace(run, environment=sent(run.environment) | {"PYTHONPATH": run.environment["PYTHONPATH"]})
    log_file = run.job_file.with_name("worker.log")
    for restart in range(cluster.max_restarts + 1):
        if restart:
            drop_damaged(run.job_file.parent)
            print(f"finetune: restart {restart} of {cluster.max_restarts}", file=sys.stderr, flush=True)
        for log in logs(log_file):
            log.unlink()
        code = attempt(cluster, run)
        if code == 0 or reported(log_file) is not None:  # another attempt would only repeat the error
            break
    return code
