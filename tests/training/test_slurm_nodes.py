"""Training over the nodes of a Slurm job, with a stand-in for srun that runs the tasks on this machine.

``make test-backends-slurm`` runs the same on a real Slurm cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.training import slurm_nodes
from selfimprove.training.config import FinetuneParams, LauncherConfig
from selfimprove.training.processes import NodesRun
from tests.support.nodes_trainer import Training
from tests.support.repo_copy import ROOT
from tests.support.sentences import refused_with

SRUN = ROOT / "tests/support/srun"
STEPS = 10


def task_one(training: Training) -> list[psutil.Process]:
    """The processes of the second node."""
    below = psutil.Process(training.process.pid).children(recursive=True)
    return [process for process in below if process.environ().get("SLURM_PROCID") == "1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_srun_trains_over_two_nodes_and_neither_a_kill_nor_a_lost_node_changes_a_byte(
    tiny: Path, dialogues: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").symlink_to(SRUN)
    job = {"SLURM_JOB_NUM_NODES": "2", "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    examples = dialogues(4 * STEPS)
    here = Training(tmp_path / "here", tiny, examples)
    steps, losses, _ = here.end()
    assert steps == [*range(1, STEPS + 1)]

    killed = Training(tmp_path / "there", tiny, examples, job, kind="slurm")
    assert killed.reach(2) == [1, 2]
    processes = psutil.Process(killed.process.pid).children(recursive=True)
    assert len(task_one(killed)) >= 2  # torchrun, and its worker
    killed.process.kill()
    killed.process.communicate()
    assert psutil.wait_procs(processes, timeout=60)[1] == []

    cut = Training(tmp_path / "there", tiny, examples, job, kind="slurm")
    assert cut.reach(6)[0] > 1  # it resumes
    for process in task_one(cut):
        process.kill()
    steps, found, said = cut.end()
    assert "finetune: restart 1 of 1" in said
    assert steps[-1] == STEPS
    assert 1 not in steps  # it did not start over
    assert found == losses
    assert cut.model() == here.model()


def test_without_a_slurm_job_with_enough_nodes_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = FinetuneParams(launcher=LauncherConfig(kind="torchrun", nodes=3))
    (tmp_path / "srun").symlink_to(SRUN)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for allotted, words in ((None, "this process is not in a Slurm job"), ("2", "this one has 2")):
        monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
        if allotted:
            monkeypatch.setenv("SLURM_JOB_NUM_NODES", allotted)
        with refused_with(rf"at least 3 nodes and srun, but {words}; run `CLUSTER=slurm sbatch --nodes=3 "):
            slurm_nodes.attempt(ClusterParams(kind="slurm"), NodesRun(cfg, tmp_path / "job.json", {}, None, 1))
