"""Reflect-RL's stages, killed and started again: the same bytes, nothing finished done twice.

As ``test_kill.py`` does for RISE: a chat teacher's answer, and in evaluation each model's, is one journal entry;
reinforcement learning saves every other iteration. (Its parts, also by several processes: test_learn.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from selfimprove.core.records import read_jsonl
from selfimprove.methods.reflect_rl.generate import Trajectory
from selfimprove.methods.reflect_rl.teacher import CHOOSE
from tests.engines.http_endpoint import Endpoint, Reply, Seen, answer, endpoint
from tests.envs.autoexplore.conftest import FILES, plant
from tests.pipeline.workbench import Place, Unbroken, Workbench, kept_by, killed, published

pytestmark = pytest.mark.timeout(600)

ASK, TEACH, PLAY, RL = (
    ("reflect_rl.data", ""),
    ("reflect_rl.generate", ""),
    ("reflect_rl.evaluate", "policy"),
    ("reflect_rl.finetune", "reflect_rl"),
)
SAVE_STEPS = 2
STEPS = 6


def teacher(seen: Seen) -> Reply:
    """A chat model that always says the same to the same: questions, labels, analyses."""
    said = seen.body["messages"][-1]["content"]
    number = crc32(said.encode())
    if "QUERY" in said:
        return answer(f"QUERY: What is number {number}?\nANSWER: It is here.")
    return answer(str(number % 6) if said.endswith(CHOOSE) else f"Nothing but walls, {number % 100} of them.")


@pytest.fixture(scope="module")
def chat() -> Iterator[Endpoint]:
    """The teacher's endpoint."""
    with endpoint(then=teacher) as server:
        yield server


def settings(stage: Place, folder: Path, chat: Endpoint) -> dict[str, Any]:
    """What the stage needs beside the bench's params."""
    engines = {"teacher": {"engine": "openai", "base_url": chat.url, "model": "m", "api_key_env": None}}
    if stage == TEACH:
        return {"reflect_rl": {"engines": engines, "generate": {"tasks": 4, "negative_tasks": 3, "horizon": 3}}}
    if stage == ASK:
        repos = plant(folder / "repos" / "eventlib", FILES).parent
        env = {"name": "autoexplore", "repos": str(repos.relative_to(folder)), "labels": "single"}
        tasks = {"train": 2, "dev": 1, "test": 1, "teacher": "teacher"}
        return {"reflect_rl": {"engines": engines, "env": env, "tasks": tasks}}
    return {"reflect_rl": {"evaluate": {"eval_reps": 3}}}


def bench_for(bench: Workbench, stage: Place, folder: Path, chat: Endpoint) -> Path:
    """A folder of its own, in which the stage has not run."""
    return bench.copy(folder, settings(stage, folder, chat))


@pytest.fixture(scope="module")
def unbroken(
    reflect_bench: Workbench, chat: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> dict[Place, Unbroken]:
    """Each of the stages, run whole."""
    runs = {}
    for stage in (ASK, TEACH, PLAY, RL):
        folder = bench_for(reflect_bench, stage, tmp_path_factory.mktemp("unbroken") / "bench", chat)
        before = len(chat.seen)
        ran = reflect_bench.forks.run(folder, *stage)
        assert ran.code == 0, ran.stderr
        runs[stage] = Unbroken(published(folder), ran, len(chat.seen) - before)
    assert runs[ASK].calls == runs[ASK].count("journaled") == 6  # a request each file
    assert runs[TEACH].calls == runs[TEACH].count("journaled") >= 6
    assert runs[PLAY].count("computed") == runs[PLAY].count("journaled") >= 12
    assert runs[RL].count("step") == STEPS
    return runs


def test_reflect_rl_02_a_teachers_questions_become_tasks_and_are_counted(unbroken: dict[Place, Unbroken]) -> None:
    files = unbroken[ASK].files
    tasks = json.loads(files["data/reflect_rl/tasks/tasks.json"])
    assert {task["filename"] for task in tasks} == set(FILES)
    assert {task["model"] for task in tasks} == {"m"}
    assert json.loads(files["data/reflect_rl/tasks/asked.json"])["tasks"] == 6
    (row,) = json.loads(files["data/reflect_rl/tasks/repos.json"])
    assert (row["name"], row["files"]) == ("eventlib", 6)


def test_reflect_rl_52_a_chat_teachers_words_are_what_is_learnt(
    tmp_path: Path, unbroken: dict[Place, Unbroken]
) -> None:
    file = tmp_path / "trajectories.jsonl"
    file.write_bytes(unbroken[TEACH].files["data/reflect_rl/trajectories.jsonl"])
    made = read_jsonl(file, Trajectory)
    assert [one.info for one in made] == ["positive"] * 4 + ["negative0"] * 3
    assert {one.teacher for one in made} == {"m"}
    assert all(one.steps for one in made)
    assert all("walls" in step.reflection for one in made for step in one.steps)


@pytest.mark.parametrize("stage", [ASK, TEACH], ids=["questions", "trajectories"])
@pytest.mark.parametrize(("count", "when"), [(1, "before"), (3, "torn"), (5, "after")])
def test_reflect_rl_08_killed_at_a_teachers_answer_resumes_and_asks_at_most_those_in_flight_again(
    reflect_bench: Workbench,
    tmp_path: Path,
    chat: Endpoint,
    unbroken: dict[Place, Unbroken],
    stage: Place,
    count: int,
    when: str,
) -> None:
    whole = unbroken[stage]
    folder = bench_for(reflect_bench, stage, tmp_path / "bench", chat)
    before = published(folder)
    killed(reflect_bench, folder, stage, kill={"at": "journal", "count": count, "when": when})
    assert published(folder) == before  # nothing is published by half
    kept = kept_by(folder, stage)
    assert kept == (count if when == "after" else count - 1)
    again = reflect_bench.forks.run(folder, *stage)
    assert (again.code, published(folder)) == (0, whole.files)
    assert again.log.count("journaled") == whole.calls - kept  # no answer that was kept is asked for again


@pytest.mark.parametrize(("back", "when"), [(-1, "torn"), (-7, "after"), (1, "before"), (0, "torn")])
def test_reflect_rl_08_killed_in_evaluation_loses_at_most_one_answer_and_ends_with_the_same_bytes(
    reflect_bench: Workbench,
    tmp_path: Path,
    chat: Endpoint,
    unbroken: dict[Place, Unbroken],
    back: int,
    when: str,
) -> None:
    """``back``: the entry at which it dies, from the last one; negative: from the first."""
    whole = unbroken[PLAY]
    count = -back if back < 0 else whole.count("journaled") - back
    folder = bench_for(reflect_bench, PLAY, tmp_path / "bench", chat)
    before = published(folder)
    first = killed(reflect_bench, folder, PLAY, kill={"at": "journal", "count": count, "when": when})
    assert published(folder) == before
    kept = kept_by(folder, PLAY)
    assert kept == (count if when == "after" else count - 1)
    assert first.log.count("computed") - kept <= 1
    again = reflect_bench.forks.run(folder, *PLAY)
    assert (again.code, published(folder)) == (0, whole.files)
    assert again.log.count("computed") == whole.count("computed") - kept


@pytest.mark.parametrize(
    ("kill", "steps"),
    [
        ({"at": "step", "count": 1, "when": "before"}, STEPS),
        ({"at": "step", "count": 3, "when": "before"}, STEPS - 2),  # iteration 3 is lost, 2 was saved
        ({"at": "step", "count": 4, "when": "after"}, STEPS - 4),
        ({"at": "step", "count": 6, "when": "after"}, STEPS - 4),  # all done, the model not written
    ],
)
def test_reflect_rl_50_killed_in_rl_redoes_at_most_one_save_interval_and_ends_with_the_same_bytes(
    reflect_bench: Workbench,
    tmp_path: Path,
    chat: Endpoint,
    unbroken: dict[Place, Unbroken],
    kill: dict[str, object],
    steps: int,
) -> None:
    folder = bench_for(reflect_bench, RL, tmp_path / "bench", chat)
    before = published(folder)
    first = killed(reflect_bench, folder, RL, kill=kill)
    assert published(folder) == before
    again = reflect_bench.forks.run(folder, *RL)
    assert (again.code, published(folder)) == (0, unbroken[RL].files)
    assert again.log.count("step") == steps
    assert first.log.count("step") + steps <= STEPS + SAVE_STEPS


@pytest.mark.parametrize("stage", [TEACH, RL], ids=["trajectories", "rl"])
@pytest.mark.parametrize("back", [0, 1])
def test_reflect_rl_50_killed_while_publishing_does_nothing_again(
    reflect_bench: Workbench,
    tmp_path: Path,
    chat: Endpoint,
    unbroken: dict[Place, Unbroken],
    stage: Place,
    back: int,
) -> None:
    whole = unbroken[stage]
    folder = bench_for(reflect_bench, stage, tmp_path / "bench", chat)
    last = whole.count("replaced") - back
    killed(reflect_bench, folder, stage, kill={"at": "replace", "count": last, "when": "before"})
    asked = len(chat.seen)
    again = reflect_bench.forks.run(folder, *stage)
    assert (again.code, published(folder)) == (0, whole.files)
    assert len(chat.seen) == asked
    assert "step" not in again.log
