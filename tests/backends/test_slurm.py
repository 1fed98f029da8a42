"""A real Slurm on this machine (munge, slurmctld, slurmd): sbatch runs the smoke profile up to its results table.

Needs Debian's slurm-wlm and munge. One of the three nodes does not see the repository: its slurmd runs in a separate
mount namespace.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.nodes_trainer import Training
from tests.support.repo_copy import ROOT, copy_short, environment

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))),
        reason="there is no Slurm here; on Debian: apt-get install slurm-wlm munge",
    ),
]

# A requeued job starts only after the credentials of its first run have expired (cred_expire).
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2
PartitionName=seeing Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=blind Nodes=n1,n3 MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_short(tmp_path_factory.mktemp("repository") / "repo")
    shutil.copytree(ROOT / "cluster", folder / "cluster")
    for name in (".venv", ".venvs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Iterator[dict[str, str]]:
    """The environment variables with which Slurm's commands find the cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-n1", "spool-n2", "spool-n3"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    names = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "folder": folder}
    config.write_text(CONFIG.format(ports=free_ports(4), **names))
    files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
    hidden = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{repo}" && exec "$@"', "sh"]
    commands: Sequence[tuple[str, list[str]]] = (
        ("munged", ["munged", "--foreground", "--force", *munge]),
        ("slurmctld", ["slurmctld", "-D", "-f", str(config)]),
        ("n1", ["slurmd", "-D", "-N", "n1", "-f", str(config)]),
        ("n2", ["slurmd", "-D", "-N", "n2", "-f", str(config)]),
        ("n3", [*hidden, "slurmd", "-D", "-N", "n3", "-f", str(config)]),
    )
    more = {"SLURM_CONF": str(config), "MAKEFLAGS": "", "PATH": f"{environment()['PATH']}:/usr/sbin"}
    env = environment() | more
    daemons = []
    for name, command in commands:
        if name == "slurmctld":
            until(lambda: (folder / "munge.sock").exists(), "munged", folder)
        with (folder / f"{name}.out").open("wb") as out:
            daemons.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
    until(lambda: ask(env, "sinfo", "-h", "-N", "-p", "seeing", "-o", "%T").split() == ["idle", "idle"], "n1", folder)
    yield env
    ask(env, "scancel", "--user", getpass.getuser())
    for daemon in reversed(daemons):
        daemon.terminate()
        daemon.wait(timeout=60)


def until(true: object, daemon: str, folder: Path, seconds: float = 60.0) -> None:
    """Wait until a condition holds; on timeout, fail with a daemon's log."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, (folder / f"{daemon}.out").read_text()
        time.sleep(0.2)


def ask(env: dict[str, str], *command: str, folder: Path | None = None, check: bool = False) -> str:
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=1500)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submit(env: dict[str, str], repo: Path, log: Path, *words: str, wait: bool = True) -> str:
    """Submit a job; return its id."""
    flags = ["--wait"] if wait else []
    said = ask(env, "sbatch", *flags, "--parsable", f"--output={log}", *words, folder=repo)
    return said.split(";")[0].strip()


def test_sbatch_runs_the_smoke_profile_up_to_its_table_and_a_requeued_job_resumes(
    slurm: dict[str, str], repo: Path, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    job = submit(slurm, repo, log, "--nodes=2", "cluster/slurm/repro.sbatch", "METHOD=spin", wait=False)
    until(lambda: log.exists() and "Running stage 'spin-finetune@base'" in log.read_text(), "slurmctld", tmp_path, 300)
    ask(slurm, "scancel", "--batch", "--signal=USR1", job, check=True)  # as Slurm does before the time limit
    until(lambda: not ask(slurm, "squeue", "-h", "-j", job).strip(), "slurmctld", tmp_path, 1200)

    text = log.read_text()
    assert re.search(r"^ ?spin\b", text, re.M), text
    assert "iter0" in text.rsplit("Running stage", 1)[1]
    again = {stage for stage, times in Counter(ran(text)).items() if times > 1}
    assert "inputs" in again, text  # it runs both before and after requeueing
    assert len(again - {"inputs"}) <= 1, again  # the interrupted stage; finished stages are not rerun
    assert (repo / "results/summary/spin.json").is_file()
    answered = re.findall(r"requests answered: (\d+) on \S+, (\d+) on \S+\n", text)
    # Ray's cluster spans both nodes, and both answer requests.
    assert len(answered) == text.count("requests answered") >= 2
    assert all(int(one) and int(other) for one, other in answered), answered
    logs = {path.name for path in (repo / ".scratch/logs").glob("ray-*.log")}
    assert len(logs) == 2  # one from the head, one from the other node
    shown = (log, *(repo / ".scratch/logs").glob("*"))
    assert not [path for path in shown if re.search(r"RAY_AUTH_TOKEN=|\b[0-9a-f]{64}\b", path.read_text())]  # tokens


def test_srun_trains_on_two_nodes_and_losing_one_changes_no_byte(
    slurm: dict[str, str], tiny: Path, dialogues: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    examples, steps = dialogues(40), [*range(1, 11)]
    here = Training(tmp_path / "here", tiny, examples)
    there, log = here.beside("there"), tmp_path / "train.log"
    command = shlex.join(
        [sys.executable, "-m", "tests.support.nodes_trainer", str(there), str(tiny), '{"kind": "slurm"}']
    )
    job = submit(slurm, ROOT, log, "--nodes=2", "--open-mode=append", f"--wrap={command}", wait=False)
    until(lambda: log.exists() and "step 4\n" in log.read_text(), "slurmctld", tmp_path, 300)
    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get("SLURM_JOB_ID") == job and environment.get("SLURM_PROCID") == "1":
                process.kill()
                killed += 1
    assert killed >= 2  # torchrun and its worker
    until(lambda: not ask(slurm, "squeue", "-h", "-j", job).strip(), "slurmctld", tmp_path, 600)
    text = log.read_text()
    assert "finetune: restart 1 of 1" in text, text
    _, losses, _ = here.end()
    assert json.loads(text.splitlines()[-1]) == losses
    assert [int(step) for step in re.findall(r"^step (\d+)$", text, re.M)][-6:] == steps[-6:]
    assert {f.name: f.read_bytes() for f in (there / "model").iterdir()} == here.model()


def ran(text: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", text)


def test_a_node_that_does_not_see_the_repository_is_reported(slurm: dict[str, str], repo: Path, tmp_path: Path) -> None:
    if getpass.getuser() != "root":
        pytest.skip("a file system of its own needs root")
    log = tmp_path / "blind.log"
    submit(slurm, repo, log, "--nodes=2", "--partition=blind", "cluster/slurm/repro.sbatch", "METHOD=spin")
    assert f"node n3 does not see {repo}, or no repository in it; submit from the repository" in log.read_text()
    assert "Running stage" not in log.read_text()
