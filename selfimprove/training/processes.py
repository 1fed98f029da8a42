"""Training processes started by torchrun or XTuner: command, input, progress, report and termination.

Neither torch nor NumPy is imported before there is something to train.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from selfimprove.core.errors import UserError
from selfimprove.training.config import FinetuneParams, LauncherConfig
from selfimprove.training.encode import EncodedExample
from selfimprove.training.progress import Progress
from selfimprove.training.stopping import SAVING_SECONDS, sigterm_interrupts

if TYPE_CHECKING:
    from selfimprove.training.job import RunJob

Report = TypeVar("Report", bound=BaseModel)

ORPHANED = 3
"""Exit code of a training process that outlived its launcher."""
PARENT_SECONDS = 1.0
"""Interval at which a training process checks whether its parent, torchrun's agent, is still running."""
PROGRESS_MARK = "@step "
MEETING_MARK = "@meet "
"""Prefix of a line with the rendezvous address of the nodes, which ``watch`` forwards to the processes."""
LOG_LINES = 6
LAUNCHED = "SELFIMPROVE_LAUNCHED"
"""Environment variable set to 1 for processes started by ``watch``, whose standard input stays open while it lives."""


@dataclass(frozen=True)
class NodesRun:
    """One training run over several nodes.

    ``job_file``: the workers' job, in a folder that all nodes share; the first node writes ``worker.log`` there.
    ``environment``: variables to set in addition to a node's own; ``threads``: CPU threads per process.
    """

    params: FinetuneParams
    job_file: Path
    environment: Mapping[str, str]
    progress: Progress | None
    threads: int


OverNodes = Callable[[NodesRun], int]
"""``nodes.run_on_nodes`` for a given cluster."""


def run_workers(
    job: RunJob,
    encoded: Sequence[EncodedExample],
    train: Callable[..., Report],
    report: type[Report],
    progress: Progress | None,
    over_nodes: OverNodes | None = None,
) -> Report:
    """Start the workers, forward their progress, and read the report written by the first one.

    Workers get the dotted names of ``train`` and of the job's class, so that they import only one method's trainer.
    ``over_nodes`` starts them on several nodes of a cluster; without it they start on this machine.
    """
    folder = job.checkpoints
    save_encoded(folder / "examples.npz", encoded)
    job_file, report_file, log_file = folder / "job.json", folder / "report.json", folder / "worker.log"
    report_file.unlink(missing_ok=True)
    absolute = job.model_copy(update={key: value.absolute() for key, value in job if isinstance(value, Path)})
    names = {"train": _dotted(train), "job_class": _dotted(type(job))}
    job_file.write_text(json.dumps({**names, "job": absolute.model_dump(mode="json")}), encoding="utf-8")
    launcher = job.params.launcher
    path = os.pathsep.join([*(p for p in sys.path if p), str(Path.cwd())])
    environment = worker_environment(job) | {"PYTHONPATH": path}
    if launcher.nodes > 1 and over_nodes is not None:
        code = over_nodes(NodesRun(job.params, job_file.absolute(), environment, progress, job.threads))
    else:
        if launcher.nodes > 1 and launcher.rendezvous is None:
            raise UserError(
                f"launcher: nodes {launcher.nodes} needs a cluster that starts the nodes (CLUSTER=ray or "
                "CLUSTER=slurm, docs/scale.md); to start them manually, set rendezvous to host:port of node 0."
            )
        here = worker_command(job_file.absolute(), launcher)
        if launcher.nodes > 1:
            print(f"finetune: run this command on every other node too: {' '.join(here)}", file=sys.stderr, flush=True)
        code = watch(here, environment, log_file, progress)
    if code != 0 or not report_file.is_file():
        raise UserError(
            f"{job.params.launcher.kind}: the training processes failed with exit code {code}; {log_file} ends with: "
            f"{reason(log_file)}"
        )
    return report.model_validate_json(report_file.read_text(encoding="utf-8"))


def worker_environment(job: RunJob) -> dict[str, str]:
    """The environment of training processes. DeepSpeed's device is theirs, whatever this process has set for itself."""
    own = {"OMP_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": "false"}
    alone = job.params.launcher.nodes == 1
    return {**(loopback() if alone else {}), **os.environ, **own, "DS_ACCELERATOR": job.params.device}


def loopback() -> dict[str, str]:
    """The variable with which the processes of one machine connect so that no other machine can."""
    name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def worker_command(
    job_file: Path, launcher: LauncherConfig, endpoint: str | None = None, own: Sequence[str] = ()
) -> list[str]:
    """The command that starts one node's workers; with several nodes, it is run on each.

    Args:
        endpoint: the nodes' rendezvous; default: the launcher's ``rendezvous``.
        own: additional torchrun options for this node.
    """
    torchrun = "selfimprove.training.torchrun" if launcher.nodes == 1 else "torch.distributed.run"
    command = [sys.executable, "-m", torchrun, f"--nproc-per-node={launcher.processes}"]
    if launcher.nodes == 1:
        # By default the processes meet at this machine's name, which does not resolve on many laptops.
        here = "127.0.0.1"
        command += [
            "--nnodes=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={here}:{free_port()}",
            f"--local-addr={here}",
        ]
    else:
        command += [
            f"--nnodes={launcher.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint or launcher.rendezvous}",
        ]
    command += [
        *own,
        f"--shutdown-timeout={SAVING_SECONDS}",
        f"--rdzv-id={job_file.parent.name}",
        "-m",
        "selfimprove.training.worker",
        str(job_file),
    ]
    return command


def save_encoded(path: Path, examples: Sequence[EncodedExample]) -> None:
    """Write encoded examples for the workers, as NumPy arrays without pickles."""
    import numpy as np

    np.savez(
        path,
        lengths=np.array([len(example.ids) for example in examples], dtype=np.int64),
        ids=np.array([i for example in examples for i in example.ids], dtype=np.int64),
        weights=np.array([w for example in examples for w in example.token_weights], dtype=np.float64),
    )


def load_encoded(path: Path) -> list[EncodedExample]:
    """Read the file that ``save_encoded`` wrote."""
    import numpy as np

    examples, start = [], 0
    with np.load(path, allow_pickle=False) as arrays:
        ids, weights = arrays["ids"].tolist(), arrays["weights"].tolist()
        for length in arrays["lengths"].tolist():
            examples.append(EncodedExample(ids[start : start + length], weights[start : start + length]))
            start += length
    return examples


def watch(command: Sequence[str], environment: dict[str, str], log_file: Path, progress: Progress | None) -> int:
    """Run training processes to completion, forward their progress and log their other output; returns the exit code.

    Their standard input is closed when this process dies. ``LAUNCHED`` makes them exit then: no orphan keeps training.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, LAUNCHED: "1"},
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with sigterm_interrupts(), log_file.open("w", encoding="utf-8") as log:
            for line in process.stdout:
                if line.startswith(MEETING_MARK):
                    process.stdin.write(line[len(MEETING_MARK) :])
                    process.stdin.flush()
                elif not line.startswith(PROGRESS_MARK):
                    log.write(line)
                    log.flush()
                elif progress is not None:
                    progress(*json.loads(line[len(PROGRESS_MARK) :]))
            return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            # Read on while they save: a full pipe would stop them.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            process.wait()


def tell(done: int, total: int, note: str, metrics: Mapping[str, float]) -> None:
    """In a training process: report progress to ``watch``."""
    print(PROGRESS_MARK + json.dumps([done, total, note, dict(metrics)]), flush=True)


def leave_with_launcher() -> None:
    """In a training process: exit when its launcher, or its parent (torchrun's agent), is gone.

    ``watch`` holds the other end of its workers' standard input and sets ``LAUNCHED``: end-of-file then means that it
    is gone. A node started by hand or by sbatch has no launcher, and its standard input is arbitrary.
    """
    threading.Thread(target=_leave_with_launcher, daemon=True).start()


def _leave_with_launcher() -> None:
    agent = os.getppid()
    launched = [0] if os.environ.get(LAUNCHED) == "1" else []
    while os.getppid() == agent:
        readable, _, _ = select.select(launched, [], [], PARENT_SECONDS)
        if readable and not os.read(0, 4096):
            break
    os._exit(ORPHANED)


def compile_apart(folder: Path) -> None:
    """In a training process: let DeepSpeed compile below ``folder``, and remove locks left there by killed runs.

    torch waits indefinitely while the build folder contains another process's lock, even if that process is dead. A
    lock is stale if it is older than the processes of this run on this machine.
    """
    import psutil

    place = folder / f"extensions-{socket.gethostname()}"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(place)
    oldest = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    started = psutil.Process(oldest).create_time()
    for lock in place.rglob("lock"):
        with contextlib.suppress(FileNotFoundError):  # another process of this run was faster
            if lock.stat().st_mtime < started:
                lock.unlink()
                print(f"{lock}: deleted; it was left by a run that was killed during compilation.", flush=True)


def logs(log_file: Path) -> list[Path]:
    """The existing logs of the nodes' workers: of the first one, then of the others, ``node1.log`` and so on."""
    return [one for one in (log_file, *sorted(log_file.parent.glob("node*.log"))) if one.is_file()]


def reported(log_file: Path) -> str | None:
    """The first error that a worker on any node reported."""
    for log in logs(log_file):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.strip().startswith("error: "):
                return line.strip().removeprefix("error: ")
    return None


def reason(log_file: Path) -> str:
    """Why training failed: the error that a worker reported, or the end of the log before torchrun's summary."""
    if (error := reported(log_file)) is not None:
        return error
    lines = [line.strip() for line in log_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if "failed (exitcode" in line or "ChildFailedError" in line:
            lines = lines[:index]
            break
    return " | ".join(lines[-LOG_LINES:]) or "nothing"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _dotted(what: Any) -> str:
    return f"{what.__module__}:{what.__qualname__}"
