"""Training on several nodes of a Slurm job: srun starts one torchrun on each.

They form a group by torchrun's c10d rendezvous on the node of task 0, which srun chooses. Task 0 prints its address,
which the stage writes to srun's standard input, and srun forwards to all tasks. That input is closed when the stage
ends, and the workers exit with it.
"""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.training.config import LauncherConfig
from selfimprove.training.processes import MEETING_MARK, NodesRun, free_port, watch, worker_command


def attempt(cluster: ClusterParams, run: NodesRun) -> int:
    """See ``nodes.Attempt``; nodes have the CPUs and GPUs that Slurm allocated to the job.

    Raises:
        UserError: there is no Slurm job, or it has too few nodes.
    """
    nodes = run.params.launcher.nodes
    allotted = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
    if allotted < nodes or shutil.which("srun") is None:
        found = f"this one has {allotted}" if allotted else "this process is not in a Slurm job"
        raise UserError(
            f"launcher: nodes {nodes} with CLUSTER=slurm needs a Slurm job of at least {nodes} nodes and srun, but "
            f"{found}; run `CLUSTER=slurm sbatch --nodes={nodes} cluster/slurm/repro.sbatch` (docs/scale.md)."
        )
    command = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--overlap",  # share resources with a step that holds them, such as an interactive shell
        "--cpu-bind=none",  # one task comprises all processes of its node
        "--kill-on-bad-exit=1",
        f"--chdir={Path.cwd()}",
        sys.executable,
        "-m",
        "selfimprove.training.slurm_nodes",
        str(run.job_file),
    ]
    return watch(command, {**os.environ, **run.environment}, run.job_file.with_name("worker.log"), run.progress)


def main(job_file: Path) -> None:
    """In each task: become its node's torchrun. Task 0's output goes to the stage, that of others to their own logs."""
    task = int(os.environ["SLURM_PROCID"])
    launcher = LauncherConfig.model_validate(json.loads(job_file.read_text("utf-8"))["job"]["params"]["launcher"])
    if task == 0:
        host = _address_towards(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
        print(f"{MEETING_MARK}{host}:{free_port()}", flush=True)
    endpoint = _read_line()
    if not endpoint:
        sys.exit("srun passed no address to this task")
    own = [f"--local-addr={_address_towards(endpoint.rpartition(':')[0])}", f"--rdzv-conf=is_host={task == 0}"]
    if task:
        log = os.open(job_file.with_name(f"node{task}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
    command = worker_command(job_file, launcher, endpoint, own)
    os.execv(command[0], command)


def _address_towards(host: str) -> str:
    """This machine's address on the route to ``host``; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _read_line() -> str:
    """Read one line of standard input and leave the rest to the workers, which wait for end-of-file."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
