"""Real stages, killed and started again: the same bytes, nothing finished done twice.

What each test counts: ``computed`` completions the engine made, ``journaled`` entries written, ``step`` steps trained.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path

import psutil
import pytest

from tests.pipeline.workbench import Workbench, entry_key, published

pytestmark = pytest.mark.timeout(600)

KILL = -signal.SIGKILL
SAVE_STEPS = 2
GENERATE_REPLACES = 7  # the lock's owner, metrics, manifest, done, two outputs, timing


@pytest.fixture(scope="module")
def unbroken(bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files after an unbroken generate and an unbroken first SFT."""
    folder = bench.copy(tmp_path_factory.mktemp("unbroken") / "bench")
    ran = bench.forks.run(folder, "rise.generate", "iter1")
    assert (ran.code, ran.log.count("computed"), ran.log.count("journaled")) == (0, 6, 6)
    assert ran.log.count("replaced") == GENERATE_REPLACES
    return published(folder)


def journal_of(folder: Path, name: str = "completions.journal") -> list[str]:
    """Keys of the whole entries of the stage's journal."""
    files = list(folder.glob(f".scratch/stages/rise-generate-iter1/*/{name}"))
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    return [entry_key(line) for line in lines if line.endswith(b"\n")]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("when", ["before", "torn", "after"])
def test_rise_21_generate_killed_at_an_entry_resumes_and_ends_with_the_same_bytes(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes], count: int, when: str
) -> None:
    folder = bench.copy(tmp_path / "bench")
    before = published(folder)
    killed = bench.forks.run(folder, "rise.generate", "iter1", kill={"at": "journal", "count": count, "when": when})
    assert killed.signal == signal.SIGKILL
    assert published(folder) == before  # nothing is published by half
    kept = journal_of(folder)
    assert len(kept) == (count if when == "after" else count - 1)
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, published(folder)) == (0, unbroken)
    # Every kept completion is taken from the journal: only what had no entry is computed.
    assert again.log.count("journaled") == again.log.count("computed") == 6 - len(kept)


@pytest.mark.parametrize("count", range(2, GENERATE_REPLACES + 1))
def test_rise_21_generate_killed_while_publishing_computes_nothing_again(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes], count: int
) -> None:
    folder = bench.copy(tmp_path / "bench")
    killed = bench.forks.run(folder, "rise.generate", "iter1", kill={"at": "replace", "count": count, "when": "before"})
    assert killed.signal == signal.SIGKILL
    fresh = {path: data for path, data in published(folder).items() if unbroken.get(path) != data}
    assert fresh == {}  # what is there is whole
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, published(folder)) == (0, unbroken)
    assert "computed" not in again.log


def test_rise_21_killed_three_times_in_a_row_every_run_gets_further(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    for kept in (2, 4, 6):
        bench.forks.run(folder, "rise.generate", "iter1", kill={"at": "journal", "count": 2, "when": "after"})
        assert len(journal_of(folder)) == kept
    assert bench.forks.run(folder, "rise.generate", "iter1").code == 0
    assert published(folder) == unbroken


def test_a_journal_of_other_params_is_not_taken(bench: Workbench, tmp_path: Path) -> None:
    folder = bench.copy(tmp_path / "bench")
    bench.forks.run(folder, "rise.generate", "iter1", kill={"at": "journal", "count": 4, "when": "after"})
    bench.copy(folder, {"rise": {"iterations": {"iter1": {"generate": {"temperature": 0.5}}}}})
    other = bench.forks.run(folder, "rise.generate", "iter1")
    assert (other.code, other.log.count("computed")) == (0, 6)


def test_outputs_that_dvc_deleted_come_back_without_work(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    assert bench.forks.run(folder, "rise.generate", "iter1").code == 0
    (folder / "data/rise/iter1/episodes.jsonl").unlink()
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, again.log.count("computed"), published(folder)) == (0, 0, unbroken)
    # Edited since: bytes that are no longer ours are not published again.
    (folder / "data/rise/iter1/episodes.jsonl").write_text("{}\n")
    third = bench.forks.run(folder, "rise.generate", "iter1")
    assert (third.code, published(folder)) == (0, unbroken)


@pytest.mark.parametrize(
    ("kill", "steps"),
    [
        ({"at": "step", "count": 1, "when": "before"}, 6),
        ({"at": "step", "count": 3, "when": "before"}, 4),  # step 3 is lost, step 2 was saved
        ({"at": "step", "count": 4, "when": "before"}, 4),  # trained, its checkpoint not begun
        ({"at": "step", "count": 5, "when": "after"}, 2),
        ({"at": "step", "count": 6, "when": "before"}, 2),
    ],
)
def test_rise_37_finetune_killed_redoes_at_most_one_save_interval_and_ends_with_the_same_bytes(
    bench: Workbench, tmp_path: Path, kill: dict[str, object], steps: int
) -> None:
    folder, whole = bench.copy(tmp_path / "bench"), published(bench.folder)
    for path in ("models/rise/base/model.safetensors", "results/rise/base/train.json", "results/rise/base/loss.csv"):
        (folder / path).unlink()
    killed = bench.forks.run(folder, "rise.finetune", "base", kill=kill)
    assert killed.signal == signal.SIGKILL
    assert "results/rise/base/train.json" not in published(folder)
    again = bench.forks.run(folder, "rise.finetune", "base")
    assert (again.code, published(folder)) == (0, whole)
    assert again.log.count("step") == steps
    assert killed.log.count("step") + 1 + steps <= 6 + SAVE_STEPS


@pytest.fixture(scope="module")
def moves(bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often an unbroken first SFT moves a file; last of all manifest, done, model, two results, timing."""
    return bench.forks.run(bench.copy(tmp_path_factory.mktemp("m") / "b"), "rise.finetune", "base").log.count(
        "replaced"
    )


@pytest.mark.parametrize(("back", "steps"), [(1, 0), (3, 0), (5, SAVE_STEPS)])
def test_rise_37_finetune_killed_while_publishing_trains_at_most_its_last_interval_again(
    bench: Workbench, tmp_path: Path, moves: int, back: int, steps: int
) -> None:
    folder, whole = bench.copy(tmp_path / "bench"), published(bench.folder)
    (folder / "results/rise/base/train.json").unlink()
    killed = bench.forks.run(
        folder, "rise.finetune", "base", kill={"at": "replace", "count": moves - back, "when": "before"}
    )
    assert killed.signal == signal.SIGKILL
    again = bench.forks.run(folder, "rise.finetune", "base")
    assert (again.code, published(folder)) == (0, whole)
    assert again.log.count("step") == steps


def test_rise_22_shards_and_then_the_stage_give_the_same_bytes_and_ask_the_engine_once(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    before = published(folder)
    for index in (0, 1):
        ran = bench.forks.run(folder, "rise.generate", "iter1", env={"SELFIMPROVE_SHARD": f"{index}/2"})
        assert (ran.code, ran.log.count("computed")) == (0, 3)
    assert published(folder) == before  # a shard has no outputs
    merged = bench.forks.run(folder, "rise.generate", "iter1")
    assert (merged.code, merged.log.count("computed"), published(folder)) == (0, 0, unbroken)


def test_rise_22_a_killed_shard_is_finished_by_the_stage(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder, shard = bench.copy(tmp_path / "bench"), {"SELFIMPROVE_SHARD": "1/2"}
    bench.forks.run(folder, "rise.generate", "iter1", env=shard, kill={"at": "journal", "count": 2, "when": "torn"})
    assert len(journal_of(folder, "completions.1of2.journal")) == 1
    merged = bench.forks.run(folder, "rise.generate", "iter1")
    assert (merged.code, merged.log.count("computed"), published(folder)) == (0, 5, unbroken)


@pytest.mark.parametrize("shard", ["2/2", "1", "a/b", "-1/2"])
def test_rise_22_a_malformed_shard_is_refused(bench: Workbench, tmp_path: Path, shard: str) -> None:
    ran = bench.forks.run(bench.copy(tmp_path / "b"), "rise.generate", "iter1", env={"SELFIMPROVE_SHARD": shard})
    assert ran.code == 2
    assert ran.lines == [
        f"rise-generate@iter1: SELFIMPROVE_SHARD='{shard}': write index/count with index below count, such as 0/8."
    ]


@pytest.mark.parametrize(("limit", "kept"), [(1000, range(1, 6)), (3000, [6])])  # in the journal, in the outputs
def test_disk_full_while_journaling_or_writing_says_so_and_goes_on_afterwards(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes], limit: int, kept: Container[int]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    before = published(folder)
    full = bench.forks.run(folder, "rise.generate", "iter1", file_limit=limit)
    assert (full.code, len(full.lines)) == (2, 1), full.stderr
    assert "cannot write" in full.stderr
    assert "free some space and run again" in full.stderr
    assert published(folder) == before
    keys = journal_of(folder)
    assert len(keys) in kept
    again = bench.forks.run(folder, "rise.generate", "iter1")
    assert (again.code, again.log.count("computed"), published(folder)) == (0, 6 - len(keys), unbroken)


@pytest.mark.parametrize("limit", [900, 60_000, 150_000])
def test_disk_full_while_saving_a_model_says_so_and_goes_on_afterwards(
    bench: Workbench, tmp_path: Path, limit: int
) -> None:
    folder, whole = bench.copy(tmp_path / "bench"), published(bench.folder)
    full = bench.forks.run(folder, "rise.finetune", "base", file_limit=limit)
    assert (full.code, len(full.lines)) == (2, 1), full.stderr
    assert "free some space and run again" in full.stderr
    assert published(folder) == whole  # the outputs of an earlier run are still there
    (folder / "results/rise/base/train.json").unlink()
    assert bench.forks.run(folder, "rise.finetune", "base").code == 0
    assert published(folder) == whole


class Started:
    """``python -m stages.rise.generate iter1`` under a shell, which stands where dvc does."""

    def __init__(self, folder: Path, name: str) -> None:
        self.said = folder / f".said-{name}"
        # `; exit` keeps the shell from becoming the stage.
        self.shell = subprocess.Popen(
            ["sh", "-c", f"{sys.executable} -m stages.rise.generate iter1; exit $?"],
            cwd=folder, stderr=self.said.open("w"), env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip

    def text(self) -> str:
        return self.said.read_text()


def until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait for something that has to come; the limit is only there to end a broken test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_two_runs_at_once_are_refused_and_an_orphan_is_waited_for_and_taken_over(
    bench: Workbench, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    folder = bench.copy(tmp_path / "bench")
    owner = folder / ".scratch/locks/rise-generate-iter1.owner.json"
    first = Started(folder, "first")
    until(owner.exists)
    orphan = psutil.Process(json.loads(owner.read_text())["pid"])
    orphan.suspend()  # so that the rest does not depend on who is faster
    try:
        second = Started(folder, "second")
        assert second.shell.wait() == 2
        assert second.text().splitlines() == [
            f"rise-generate@iter1: stage rise-generate-iter1 is already running (process {orphan.pid}); wait for it, "
            "or end that process."
        ]
        first.shell.kill()  # kill -9 of dvc: its stage lives on
        first.shell.wait()
        assert orphan.is_running()
        third = Started(folder, "third")
        until(lambda: "waiting for it" in third.text())
        assert third.shell.poll() is None
    finally:
        orphan.resume()
    assert third.shell.wait() == 0
    until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)
    assert published(folder) == unbroken
    # The third computed nothing: its timing file, written last, knows of no engine.
    timing = json.loads((folder / ".scratch/timing/rise-generate@iter1.json").read_text())
    assert set(timing) == {"own_seconds", "seconds"}
