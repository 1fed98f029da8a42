"""Training over several nodes: which errors are repeated, who decides where to resume, what a failed node ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.publish import write_json
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.training import checkpoints, job, ray_nodes, slurm_nodes
from selfimprove.training.config import FinetuneParams, LauncherConfig
from selfimprove.training.nodes import run_on_nodes
from selfimprove.training.processes import NodesRun, reason
from tests.support.sentences import refused_with

NODES = FinetuneParams(launcher=LauncherConfig(kind="torchrun", nodes=2))


def run_in(folder: Path) -> NodesRun:
    return NodesRun(NODES, folder / "job.json", {"PYTHONPATH": ""}, None, 1)


@pytest.mark.parametrize(
    ("log", "attempts", "said"),
    [
        ("node1.log", 1, "its GPU is full"),  # a worker's own words: another attempt would only repeat them
        ("worker.log", 1, "its GPU is full"),
        (None, 3, "connection reset"),  # a lost node
    ],
)
def test_an_error_on_any_node_is_reported_and_not_repeated(
    log: str | None, attempts: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def attempt(cluster: ClusterParams, run: NodesRun) -> int:
        nonlocal made
        made += 1
        assert not list(tmp_path.glob("*.log")), "what an earlier attempt said is gone"
        for name in ("worker.log", "node1.log"):
            words = "error: its GPU is full" if name == log else "connection reset"
            (tmp_path / name).write_text(f"starting\n{words}\n", encoding="utf-8")
        return 1

    monkeypatch.setattr(slurm_nodes, "attempt", attempt)
    assert run_on_nodes(ClusterParams(kind="slurm", max_restarts=2), run_in(tmp_path)) == 1
    assert made == attempts
    assert reason(tmp_path / "worker.log").endswith(said)


def sealed(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / checkpoints.WHOLE, {})


def test_all_processes_resume_from_the_checkpoint_of_the_first_even_if_they_see_it_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_the_first(names: list[Any]) -> list[Any]:
        return ["checkpoint-20"]

    monkeypatch.setattr("accelerate.utils.broadcast_object_list", of_the_first)
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: sealed(tmp_path / "checkpoint-20"))
    sealed(tmp_path / "checkpoint-10")
    assert checkpoints.newest_for_all(tmp_path) == tmp_path / "checkpoint-20"
    assert checkpoints.is_whole(tmp_path / "checkpoint-20")


def test_a_node_that_does_not_see_the_checkpoint_is_an_error_and_not_another_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.utils.broadcast_object_list", lambda names: ["checkpoint-20"])
    monkeypatch.setattr(checkpoints, "VISIBLE_SECONDS", -1.0)
    sealed(tmp_path / "checkpoint-10")
    with refused_with(r"checkpoint-20 is not complete on .*; let all nodes share this folder"):
        checkpoints.newest_for_all(tmp_path)


def test_more_processes_than_visible_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    eight = FinetuneParams(device="cuda", launcher=LauncherConfig(kind="torchrun", processes=8))
    with refused_with(r"launcher\.processes: 8, but each needs a GPU of its own, and 4 are visible here; lower it"):
        job.check_hardware(eight)
    job.check_hardware(eight.model_copy(update={"launcher": LauncherConfig(kind="torchrun", processes=4)}))


class Node:
    """A training node whose calls are recorded; ``run`` ends as the test says."""

    def __init__(self, rank: int, calls: list[str]) -> None:
        self.rank, self.calls = rank, calls

    def __getattr__(self, name: str) -> Any:
        def remote(*_: Any) -> tuple[int, str]:
            self.calls.append(name)
            return self.rank, name

        return Call(remote)


class Call:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class Ray:
    """Stands in for Ray: ``wait`` gives what ``ends`` gives, ``get`` an exit code of 2 for a node that has ended."""

    def __init__(self, ends: Callable[[Sequence[Any]], list[Any]]) -> None:
        self.ends = ends

    def get(self, asked: Any) -> Any:
        if isinstance(asked, list):
            return [(f"10.0.0.{rank}", 29400) for rank, _ in asked]
        return [] if asked[1] == "told" else 2

    def wait(self, running: Sequence[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        return (self.ends(running) if num_returns == 1 else list(running)), []


def test_when_one_node_fails_the_others_are_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 10)
    monkeypatch.setattr(ray_nodes.time, "monotonic", lambda: next(clock))
    ray = Ray(lambda running: [one for one in running if one[0] == 1])
    assert ray_nodes._attend(ray, [Node(0, []), Node(1, [])], run_in(tmp_path)) == 2


def test_ctrl_c_asks_every_node_for_a_checkpoint(tmp_path: Path) -> None:
    def interrupted(running: Sequence[Any]) -> list[Any]:
        raise KeyboardInterrupt

    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ray_nodes._attend(Ray(interrupted), [Node(0, calls), Node(1, calls)], run_in(tmp_path))
    assert calls.count("stop") == 2
