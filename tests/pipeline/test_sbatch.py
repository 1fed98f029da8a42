"""The Slurm batch script, with stubs for Slurm's commands and make: how it handles signals, and what it starts.

``make test-backends-slurm`` submits it to a real Slurm.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.repo_copy import ROOT

STAND_INS = {
    "srun": 'shift; exec "$@"',
    "scontrol": 'echo "$@" >> scontrol.log',
    # Saves its work on SIGTERM, as the stages do.
    "make": """trap 'sleep 0.5; echo saved >> make.log; exit 143' TERM
echo "$CLUSTER $*" >> make.log
[ -e finish ] || while true; do sleep 0.1; done""",
}


def submit(folder: Path, nodes: int = 1, **more: str) -> subprocess.Popen[str]:
    """Start the script in a Slurm job with ``nodes`` nodes."""
    folder.mkdir(exist_ok=True)
    (folder / "dvc.yaml").touch()
    (folder / "bin").mkdir()
    for name, body in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": str(nodes)}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "CLUSTER"}
    return subprocess.Popen(
        ["bash", str(ROOT / "cluster/slurm/repro.sbatch"), "METHOD=rise"],
        env={**environment, **job, "SLURMD_NODENAME": "n0", "PATH": path, **more},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(file: Path, text: str) -> None:
    wait_until(lambda: file.exists() and text in file.read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGTERM, 143)])
def test_before_the_time_limit_a_job_saves_and_is_requeued_but_when_cancelled_it_only_saves(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = tmp_path / "job"
    script = submit(folder)
    wait_for(folder / "make.log", "METHOD=rise")
    script.send_signal(number)
    assert script.wait(timeout=60) == code
    assert (folder / "make.log").read_text().splitlines() == [" --no-print-directory repro METHOD=rise", "saved"]
    requeued = (folder / "scontrol.log").read_text() if (folder / "scontrol.log").exists() else ""
    assert requeued == ("requeue 77\n" if number == signal.SIGUSR1 else "")


@pytest.mark.parametrize(
    "other",
    [False, pytest.param(True, marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away"))],
)
def test_ray_s_files_are_closed_to_other_users_and_in_no_folder_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Ray lets everyone write to its folder of sessions and sockets."""
    number = str(10_000_000 + os.getpid())
    place = Path(f"/tmp/ray-{number}")
    monkeypatch.setitem(STAND_INS, "srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    folder = tmp_path / "job"
    ray = folder / ".venvs/ray/bin/ray"
    ray.parent.mkdir(parents=True)
    ray.write_text("#!/bin/bash\n[ $1 = start ] && echo $* >> ray.log\nexit 0\n")
    ray.chmod(0o755)
    try:
        if other:
            place.mkdir()
            os.chown(place, 12345, 12345)
        script = submit(folder, nodes=2, SLURM_JOB_ID=number)
        wait_for(folder / "make.log", "ray --no-print-directory repro METHOD=rise")
        if not other:
            wait_for(folder / "ray.log", "start --address")
        (folder / "finish").touch()
        script.terminate()
        script.wait(timeout=60)
        assert (folder / "ray.log").exists() != other
        assert other or place.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_several_nodes_require_ray_unless_cluster_is_slurm(tmp_path: Path) -> None:
    refused = submit(tmp_path / "ray", nodes=2)
    assert refused.wait(timeout=60) == 2
    assert refused.stderr is not None
    assert refused.stderr.read().startswith("several nodes need Ray; run `make env-ray` in ")
    folder = tmp_path / "slurm"
    script = submit(folder, nodes=2, CLUSTER="slurm")
    wait_for(folder / "make.log", "slurm --no-print-directory repro METHOD=rise")
    (folder / "finish").touch()
    script.terminate()
    script.wait(timeout=60)
