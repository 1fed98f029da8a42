"""SPIN's stages, killed and started again: the same bytes, nothing finished done twice.

As ``test_kill.py`` does for RISE. In self-play an entry of the journal is one reply of the opponent; in training it is
one pair that the opponent has scored, all of them before the first step; training saves every other step.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from shutil import rmtree

import pytest

from selfimprove.core.records import Pair, read_jsonl
from selfimprove.methods.spin.play import SpinEpisode
from tests.pipeline.workbench import Place, Ran, Unbroken, Workbench, kept_by, killed, published

pytestmark = pytest.mark.timeout(600)

PLAY, TRAIN = ("spin.generate", "iter0"), ("spin.finetune", "iter0")
PAIRS, STEPS, SAVE_STEPS = 6, 6, 2
TOLD = 1
"""Before the first step the trainer tells once that the opponent has scored; ``step`` counts it too."""
SCORES = "opponent/*/*.jsonl"


def bench_for(bench: Workbench, stage: Place, folder: Path) -> Path:
    """A folder of its own, in which the stage has not run."""
    bench.copy(folder)
    if stage == PLAY:
        for top in ("data", "results"):
            rmtree(folder / top / "spin" / "iter0")
    return folder


@pytest.fixture(scope="module")
def unbroken(spin_bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> dict[Place, Unbroken]:
    """Both stages, run whole."""
    runs = {}
    for stage in (PLAY, TRAIN):
        folder = bench_for(spin_bench, stage, tmp_path_factory.mktemp("unbroken") / "bench")
        ran = spin_bench.forks.run(folder, *stage)
        assert ran.code == 0, ran.stderr
        runs[stage] = Unbroken(published(folder), ran)
    assert runs[PLAY].count("computed") == runs[PLAY].count("journaled") >= 12
    assert runs[TRAIN].count("journaled") == PAIRS
    assert runs[TRAIN].count("step") == TOLD + STEPS
    return runs


def killed_early(bench: Workbench, folder: Path, stage: Place, **more: object) -> Ran:
    """Run a stage that is killed on its way; nothing is published by half."""
    before = published(folder)
    ran = killed(bench, folder, stage, **more)
    assert published(folder) == before
    return ran


def test_the_self_play_that_is_killed_here_has_episodes_and_pairs_to_learn_from(
    spin_bench: Workbench, unbroken: dict[Place, Unbroken]
) -> None:
    episodes = read_jsonl(spin_bench.folder / "data/spin/iter0/episodes.jsonl", SpinEpisode)
    pairs = read_jsonl(spin_bench.folder / "data/spin/iter0/train/pairs.jsonl", Pair)
    assert len(episodes) == len(pairs) == PAIRS
    assert sum(entry.attempts for one in episodes for entry in one.rounds) == unbroken[PLAY].count("computed")
    report = json.loads(unbroken[TRAIN].files["results/spin/iter0/train.json"])
    assert (report["steps"], report["pairs"]) == (STEPS, STEPS * 2)


@pytest.mark.parametrize(("back", "when"), [(-1, "torn"), (-5, "after"), (1, "before"), (0, "torn"), (0, "after")])
def test_spin_51_self_play_killed_at_a_reply_resumes_and_ends_with_the_same_bytes(
    spin_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken], back: int, when: str
) -> None:
    """``back``: the entry at which it dies, from the last one; negative: from the first."""
    whole = unbroken[PLAY]
    count = -back if back < 0 else whole.count("journaled") - back
    folder = bench_for(spin_bench, PLAY, tmp_path / "bench")
    first = killed_early(spin_bench, folder, PLAY, kill={"at": "journal", "count": count, "when": when})
    kept = kept_by(folder, PLAY)
    assert kept == (count if when == "after" else count - 1)
    assert first.log.count("computed") - kept <= 1  # at most one reply is lost
    again = spin_bench.forks.run(folder, *PLAY)
    assert (again.code, published(folder)) == (0, whole.files)
    assert again.log.count("journaled") == again.log.count("computed") == whole.count("computed") - kept


@pytest.mark.parametrize(("count", "when"), [(1, "torn"), (3, "before"), (4, "after"), (PAIRS, "after")])
def test_spin_41_killed_while_the_opponent_scores_no_pair_is_scored_twice(
    spin_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken], count: int, when: str
) -> None:
    folder = bench_for(spin_bench, TRAIN, tmp_path / "bench")
    killed_early(spin_bench, folder, TRAIN, kill={"at": "journal", "count": count, "when": when})
    kept = kept_by(folder, TRAIN, SCORES)
    assert kept == (count if when == "after" else count - 1)
    again = spin_bench.forks.run(folder, *TRAIN)
    assert (again.code, published(folder)) == (0, unbroken[TRAIN].files)
    assert again.log.count("journaled") == PAIRS - kept
    assert again.log.count("step") == STEPS + (TOLD if kept < PAIRS else 0)


@pytest.mark.parametrize(
    ("kill", "steps"),
    [
        ({"at": "step", "count": TOLD + 1, "when": "before"}, STEPS),
        ({"at": "step", "count": TOLD + 3, "when": "before"}, STEPS - 2),  # step 3 is lost, step 2 was saved
        ({"at": "step", "count": TOLD + 5, "when": "after"}, 2),
    ],
)
def test_spin_51_training_killed_redoes_at_most_one_save_interval_and_ends_with_the_same_bytes(
    spin_bench: Workbench,
    tmp_path: Path,
    unbroken: dict[Place, Unbroken],
    kill: dict[str, object],
    steps: int,
) -> None:
    folder = bench_for(spin_bench, TRAIN, tmp_path / "bench")
    first = killed_early(spin_bench, folder, TRAIN, kill=kill)
    again = spin_bench.forks.run(folder, *TRAIN)
    assert (again.code, published(folder)) == (0, unbroken[TRAIN].files)
    assert again.log.count("step") == steps
    assert "journaled" not in again.log  # the opponent is not asked again
    assert first.log.count("step") - TOLD + 1 + steps <= STEPS + SAVE_STEPS


@pytest.mark.parametrize("stage", [PLAY, TRAIN], ids=["generate", "finetune"])
@pytest.mark.parametrize("back", [0, 1])
def test_spin_51_killed_while_publishing_does_nothing_again(
    spin_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken], stage: Place, back: int
) -> None:
    whole = unbroken[stage]
    folder = bench_for(spin_bench, stage, tmp_path / "bench")
    kill = {"at": "replace", "count": whole.count("replaced") - back, "when": "before"}
    ran = spin_bench.forks.run(folder, *stage, kill=kill)
    assert ran.signal == signal.SIGKILL, ran.stderr
    assert {path for path, data in published(folder).items() if whole.files.get(path) != data} == set()
    again = spin_bench.forks.run(folder, *stage)
    assert (again.code, published(folder)) == (0, whole.files)
    assert "computed" not in again.log
    assert "step" not in again.log


def test_spin_34_a_killed_shard_of_self_play_is_finished_by_the_stage(
    spin_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken]
) -> None:
    whole = unbroken[PLAY]
    folder = bench_for(spin_bench, PLAY, tmp_path / "bench")
    shard = {"SELFIMPROVE_SHARD": "0/2"}
    killed_early(spin_bench, folder, PLAY, env=shard, kill={"at": "journal", "count": 3, "when": "torn"})
    merged = spin_bench.forks.run(folder, *PLAY)
    assert (merged.code, merged.log.count("computed")) == (0, whole.count("computed") - 2)
    assert published(folder) == whole.files
