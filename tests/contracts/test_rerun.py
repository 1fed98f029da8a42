"""Rerunning a stage after a param change, deleted outputs or a full disk, or during another run of the same stage.

(Killed stages: test_kill.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Container
from pathlib import Path

import psutil
import pytest

from tests.pipeline.workbench import Workbench, entry_key, published
from tests.support.processes import gone, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def unbroken(bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files after an uninterrupted generate and an uninterrupted first SFT."""
    folder = bench.copy(tmp_path_factory.mktemp("unbroken") / "bench")
    ran = bench.forks.run(folder, "rise.generate", "iter1")
    assert (ran.code, ran.log.count("computed"), ran.log.count("journaled")) == (0, 6, 6)
    return published(folder)


def journal_of(folder: Path, name: str = "completions.journal") -> list[str]:
    """Keys of the complete entries in the stage's journal."""
    files = list(folder.glob(f".scratch/stages/rise-generate-iter1/*/{name}"))
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    return [entry_key(line) for line in lines if line.endswith(b"\n")]


def test_a_journal_written_under_other_params_is_not_used(bench: Workbench, tmp_path: Path) -> None:
    folder = bench.copy(tmp_path / "bench")
    bench.forks.run(folder, "rise.generate", "iter1", kill={"at": "journal", "count": 4, "when": "after"})
    bench.copy(folder, {"rise": {"iterations": {"iter1": {"generate": {"temperature": 0.5}}}}})
    other = bench.forks.run(folder, "rise.generate", "iter1")
    assert (other.code, other.log.count("computed")) == (0, 6)


def test_outputs_that_dvc_deleted_are_restored_without_recomputation(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    assert bench.forks.run(folder, "rise.generate", "iter1").code == 0
    (folder / "data/rise/iter1/episodes.jsonl").unlink()
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, again.log.count("computed"), published(folder)) == (0, 0, unbroken)
    # Edited through its hard link: the changed bytes are not published again.
    (folder / "data/rise/iter1/episodes.jsonl").write_text("{}\n")
    third = bench.forks.run(folder, "rise.generate", "iter1")
    assert (third.code, published(folder)) == (0, unbroken)


# The first limit is reached in the journal, the second in the outputs.
@pytest.mark.parametrize(("limit", "kept"), [(1000, range(1, 6)), (3000, [6])])
def test_a_full_disk_while_writing_journal_or_outputs_is_reported_and_the_next_run_resumes(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes], limit: int, kept: Container[int]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    before = published(folder)
    full = bench.forks.run(folder, "rise.generate", "iter1", file_limit=limit)
    assert full.code == 2, full.stderr
    [said] = [line for line in full.lines if "6/6 in" not in line]  # printed if all episodes were finished
    assert "cannot write" in said
    assert "free some space and run again" in said
    assert published(folder) == before
    keys = journal_of(folder)
    assert len(keys) in kept
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, again.log.count("computed"), published(folder)) == (0, 6 - len(keys), unbroken)


@pytest.mark.parametrize("limit", [900, 60_000, 150_000])
def test_a_full_disk_while_saving_a_model_is_reported_and_the_next_run_succeeds(
    bench: Workbench, tmp_path: Path, limit: int
) -> None:
    folder, whole = bench.copy(tmp_path / "bench"), published(bench.folder)
    full = bench.forks.run(folder, "rise.finetune", "base", file_limit=limit)
    assert full.code == 2, full.stderr
    *others, said = full.lines
    assert "free some space and run again" in said
    assert all("loss" in line for line in others), full.stderr  # progress, on a slow machine
    assert published(folder) == whole  # the outputs of the earlier run still exist
    (folder / "results/rise/base/train.json").unlink()
    assert bench.forks.run(folder, "rise.finetune", "base").code == 0
    assert published(folder) == whole


class Started:
    """``python -m stages.rise.generate iter1``, started by a shell in the role of dvc."""

    def __init__(self, folder: Path, name: str) -> None:
        self.said = folder / f".said-{name}"
        # `; exit` keeps the shell from replacing itself with the stage.
        self.shell = subprocess.Popen(
            ["sh", "-c", f"{sys.executable} -m stages.rise.generate iter1; exit $?"],
            cwd=folder, stderr=self.said.open("w"), env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip

    def text(self) -> str:
        return self.said.read_text()


@pytest.mark.slow
def test_a_concurrent_run_is_refused_but_an_orphaned_run_is_awaited_and_its_outputs_are_used(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    owner = folder / ".scratch/locks/rise-generate-iter1.owner.json"
    first = Started(folder, "first")
    wait_until(owner.exists)
    orphan = psutil.Process(json.loads(owner.read_text())["pid"])
    orphan.suspend()  # makes the rest independent of timing
    try:
        second = Started(folder, "second")
        assert second.shell.wait() == 2
        assert second.text().splitlines() == [
            f"rise-generate@iter1: stage rise-generate-iter1 is already running (process {orphan.pid}); wait for it, "
            "or end that process."
        ]
        first.shell.kill()  # kill -9 of dvc: its stage keeps running
        first.shell.wait()
        assert orphan.is_running()
        third = Started(folder, "third")
        wait_until(lambda: "waiting for it" in third.text())
        assert third.shell.poll() is None
    finally:
        orphan.resume()
    assert third.shell.wait() == 0
    assert gone(orphan.pid)
    assert published(folder) == unbroken
    # The third run computed nothing: its timing file, written last, lists no engine.
    timing = json.loads((folder / ".scratch/timing/rise-generate@iter1.json").read_text())
    assert set(timing) == {"own_seconds", "seconds"}
