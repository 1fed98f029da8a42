"""Stages of every method, killed at any point and restarted: same bytes, and no finished work is repeated.

A run's log counts ``computed`` completions of the engine, ``journaled`` entries and ``step`` training steps. An entry
is one answer of a model (RISE, Agent-R's search and judge, SPIN's self-play, Reflect-RL's evaluation) or of a teacher's
endpoint (Reflect-RL's questions and trajectories), or a pair that SPIN's opponent has scored. Training has six steps
and saves a checkpoint every second step. (Specification: RISE 21, 22, 37; Agent-R 12, 30; Reflect-RL 8, 50; SPIN 34,
41, 51. Reflect-RL's training in several processes: test_learn.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any
from zlib import crc32

import pytest

from selfimprove.core.records import Example, Pair, read_jsonl
from selfimprove.methods.agent_r.tree import Tree
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory
from selfimprove.methods.reflect_rl.teacher import CHOOSE
from selfimprove.methods.spin.play import SpinEpisode
from tests.engines.http_endpoint import Endpoint, Reply, Seen, answer, endpoint
from tests.envs.autoexplore.conftest import FILES, plant
from tests.pipeline.workbench import Ran, Unbroken, Workbench, kept_by, killed, published

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, SAVE_STEPS = 6, 2
BENCHES = {"rise": "bench", "agent_r": "agent_bench", "reflect_rl": "reflect_bench", "spin": "spin_bench"}


@dataclass(frozen=True)
class Case:
    """A stage to be killed.

    Attributes:
        outputs: outputs of the stage that the bench already contains; they are removed first.
        journals: the glob pattern of its journals in its scratch folder.
        told: the number of progress reports before the first training step (``step`` counts them too).
        saves_first: whether a step's checkpoint is written before the step is reported.
    """

    method: str
    stage: str
    item: str = ""
    outputs: tuple[str, ...] = ()
    journals: str = "completions*.journal"
    told: int = 0
    saves_first: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """Arguments of ``Forks.run``: script and item."""
        return f"{self.method}.{self.stage}", self.item

    def __str__(self) -> str:
        return f"{self.method}-{self.stage}{'@' * bool(self.item)}{self.item}"


def sft(method: str) -> Case:
    """The base model's SFT, which the bench has already run."""
    return Case(method, "finetune", "base", (f"models/{method}/base", f"results/{method}/base"))


COLLECT, SEARCH, JUDGE = (
    Case("rise", "generate", "iter1"),
    Case("agent_r", "generate", "iter1"),
    Case("agent_r", "convert", "iter2"),
)
RISE_SFT, AGENT_R_SFT = sft("rise"), sft("agent_r")
SELF_PLAY = Case("spin", "generate", "iter0", ("data/spin/iter0", "results/spin/iter0"))
SPIN = Case("spin", "finetune", "iter0", journals="opponent/*/*.jsonl", told=1)
ASK, TEACH = Case("reflect_rl", "data"), Case("reflect_rl", "generate", outputs=("data/reflect_rl/trajectories.jsonl",))
CONVERT = Case("reflect_rl", "convert", outputs=("data/reflect_rl/base/train", "data/reflect_rl/texts.jsonl"))
PLAY = Case("reflect_rl", "evaluate", "policy")
RL = Case("reflect_rl", "reinforce", "reflect_rl", saves_first=True)
JOURNALED = [COLLECT, SEARCH, JUDGE, SELF_PLAY, SPIN, ASK, TEACH, PLAY]
TRAINED = [RISE_SFT, AGENT_R_SFT, SPIN, RL]


def teacher(seen: Seen) -> Reply:
    """A chat model whose reply (question, label or analysis) depends only on the prompt."""
    said = seen.body["messages"][-1]["content"]
    number = crc32(said.encode())
    if "QUERY" in said:
        return answer(f"QUERY: What is number {number}?\nANSWER: It is here.")
    return answer(str(number % 6) if said.endswith(CHOOSE) else f"Nothing but walls, {number % 100} of them.")


class Runner:
    """Runs cases in separate folders, and each case once without interruption."""

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory, chat: Endpoint) -> None:
        self._request, self._folders, self.chat = request, folders, chat
        self._wholes: dict[Case, Unbroken] = {}

    def bench(self, case: Case) -> Workbench:
        """The workbench in which the method's first stages have run."""
        found: Workbench = self._request.getfixturevalue(BENCHES[case.method])
        return found

    def folder(self, case: Case) -> Path:
        """A new folder in which the stage has not run."""
        folder = self._folders.mktemp("case") / "bench"
        self.bench(case).copy(folder, self._settings(case, folder))
        for path in case.outputs:
            rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()
        return folder

    def run(self, case: Case, folder: Path, **more: Any) -> Ran:
        """Run the stage to its end."""
        ran = self.bench(case).forks.run(folder, *case.place, **more)
        assert ran.code == 0, ran.stderr
        return ran

    def killed(self, case: Case, folder: Path, **more: Any) -> Ran:
        """Run the stage, which is killed before it publishes anything."""
        before = published(folder)
        ran = killed(self.bench(case), folder, case.place, **more)
        assert published(folder) == before
        return ran

    def whole(self, case: Case) -> Unbroken:
        """The stage's uninterrupted run."""
        if case not in self._wholes:
            folder, asked = self.folder(case), len(self.chat.seen)
            ran = self.run(case, folder)
            self._wholes[case] = Unbroken(published(folder), ran, len(self.chat.seen) - asked)
        return self._wholes[case]

    def _settings(self, case: Case, folder: Path) -> dict[str, Any]:
        engines = {"teacher": {"engine": "openai", "base_url": self.chat.url, "model": "m", "api_key_env": None}}
        if case == TEACH:
            return {"reflect_rl": {"engines": engines, "generate": {"tasks": 4, "negative_tasks": 3, "max_turns": 3}}}
        if case == ASK:
            repos = plant(folder / "repos" / "eventlib", FILES).parent
            env = {"name": "autoexplore", "repos": str(repos.relative_to(folder)), "labels": "single"}
            tasks = {"train": 2, "dev": 1, "test": 1, "teacher": "teacher"}
            return {"reflect_rl": {"engines": engines, "env": env, "tasks": tasks}}
        return {"reflect_rl": {"evaluate": {"eval_reps": 3}}} if case == PLAY else {}


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs cases of all methods; the teacher is an HTTP endpoint."""
    with endpoint(then=teacher) as chat:
        yield Runner(request, tmp_path_factory, chat)


def fewer(done: int, kept: int) -> int:
    """Units of a kind that remain to be done; 0 if the stage does none of that kind."""
    return done - kept if done else 0


@pytest.mark.parametrize("case", JOURNALED, ids=str)
@pytest.mark.parametrize(("place", "when"), [(1, "torn"), (3, "after"), (-2, "before"), (-1, "after")])
def test_a_stage_killed_while_journaling_loses_at_most_one_entry_and_gives_the_same_bytes(
    runner: Runner, case: Case, place: int, when: str
) -> None:
    """``place``: the entry at which the stage is killed; negative values count from the last one."""
    whole, folder = runner.whole(case), runner.folder(case)
    count = place if place > 0 else whole.count("journaled") + 1 + place
    first = runner.killed(case, folder, kill={"at": "journal", "count": count, "when": when})
    kept = kept_by(folder, case.place, case.journals)
    assert kept == (count if when == "after" else count - 1)
    assert first.log.count("computed") - kept <= 1
    again = runner.run(case, folder)
    assert published(folder) == whole.files
    assert again.log.count("journaled") == whole.count("journaled") - kept
    assert again.log.count("computed") == fewer(whole.count("computed"), kept)
    told = case.told if kept < whole.count("journaled") else 0
    assert again.log.count("step") == fewer(whole.count("step"), case.told) + told


@pytest.mark.parametrize("case", TRAINED, ids=str)
@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_training_killed_at_a_step_repeats_at_most_one_save_interval_and_gives_the_same_bytes(
    runner: Runner, case: Case, step: int
) -> None:
    """The stage is killed after the step, before it reports the step."""
    whole, folder = runner.whole(case), runner.folder(case)
    assert whole.count("step") == case.told + STEPS
    first = runner.killed(case, folder, kill={"at": "step", "count": case.told + step, "when": "before"})
    again = runner.run(case, folder)
    assert published(folder) == whole.files
    done = step if case.saves_first and step < STEPS else step - 1
    steps = STEPS - done // SAVE_STEPS * SAVE_STEPS
    assert again.log.count("step") == steps
    assert "journaled" not in again.log  # SPIN's opponent does not score again, either
    assert first.log.count("step") - case.told + 1 + steps <= STEPS + SAVE_STEPS


@pytest.mark.parametrize(
    ("case", "back", "steps"),
    [
        *((COLLECT, back, 0) for back in range(6)),  # timing, two outputs, done, manifest, metrics
        *((RISE_SFT, back, steps) for back, steps in ((1, 0), (3, 0), (5, SAVE_STEPS))),
        *((case, back, 0) for case in (SEARCH, JUDGE) for back in (0, 2)),
        *((case, back, 0) for case in (SELF_PLAY, SPIN, TEACH, RL) for back in (0, 1)),
    ],
    ids=str,
)
def test_a_stage_killed_while_publishing_generates_nothing_and_repeats_at_most_one_interval(
    runner: Runner, case: Case, back: int, steps: int
) -> None:
    """``back``: the number of files left to move after the one at which the stage is killed."""
    whole, folder = runner.whole(case), runner.folder(case)
    kill = {"at": "replace", "count": whole.count("replaced") - back, "when": "before"}
    killed(runner.bench(case), folder, case.place, kill=kill)
    assert {path for path, data in published(folder).items() if whole.files.get(path) != data} == set()
    asked = len(runner.chat.seen)
    again = runner.run(case, folder)
    assert published(folder) == whole.files
    assert (again.log.count("computed"), again.log.count("step"), len(runner.chat.seen)) == (0, steps, asked)


def test_a_stage_killed_three_times_in_a_row_makes_progress_in_every_run(runner: Runner) -> None:
    folder = runner.folder(COLLECT)
    for kept in (2, 4, 6):
        runner.killed(COLLECT, folder, kill={"at": "journal", "count": 2, "when": "after"})
        assert kept_by(folder, COLLECT.place) == kept
    runner.run(COLLECT, folder)
    assert published(folder) == runner.whole(COLLECT).files


# The killed stages do real work


@pytest.fixture
def rows(runner: Runner, tmp_path: Path) -> Callable[..., list[Any]]:
    """Reads the records of a file that a case has published."""

    def read(case: Case, path: str, record: type) -> list[Any]:
        file = tmp_path / Path(path).name
        file.write_bytes(runner.whole(case).files[path])
        return list(read_jsonl(file, record))

    return read


@pytest.mark.parametrize("case", JOURNALED, ids=str)
def test_each_stage_journals_at_least_six_entries(runner: Runner, case: Case) -> None:
    whole = runner.whole(case)
    assert whole.count("journaled") >= 6
    if case in (ASK, TEACH):
        assert whole.calls == whole.count("journaled")
    elif case != SPIN:
        assert whole.count("computed") == whole.count("journaled")


def test_the_search_builds_trees_and_the_judge_keeps_pairs(runner: Runner, rows: Callable[..., list[Any]]) -> None:
    trees = rows(SEARCH, "data/agent_r/iter1/trees.jsonl", Tree)
    assert len(trees) == 3
    expanded = sum(bool(node.children) for tree in trees for node in tree.nodes)
    assert expanded == runner.whole(SEARCH).count("computed")
    stats = json.loads(runner.whole(JUDGE).files["results/agent_r/iter2/convert.json"])
    assert stats["kept_pairs"] >= 2
    assert stats["judged"] == runner.whole(JUDGE).count("computed")


def test_self_play_yields_episodes_and_pairs_that_training_uses(runner: Runner, rows: Callable[..., list[Any]]) -> None:
    episodes = rows(SELF_PLAY, "data/spin/iter0/episodes.jsonl", SpinEpisode)
    pairs = rows(SPIN, "data/spin/iter0/train/pairs.jsonl", Pair)
    assert len(episodes) == len(pairs) == runner.whole(SPIN).count("journaled")
    attempts = sum(entry.attempts for one in episodes for entry in one.rounds)
    assert attempts == runner.whole(SELF_PLAY).count("computed")
    report = json.loads(runner.whole(SPIN).files["results/spin/iter0/train.json"])
    assert (report["steps"], report["pairs"]) == (STEPS, STEPS * 2)


def test_a_teachers_questions_become_tasks_and_are_counted(runner: Runner) -> None:
    files = runner.whole(ASK).files
    tasks = json.loads(files["data/reflect_rl/tasks/tasks.json"])
    assert {task["filename"] for task in tasks} == set(FILES)
    assert {task["model"] for task in tasks} == {"m"}
    assert json.loads(files["data/reflect_rl/tasks/asked.json"])["tasks"] == 6
    (row,) = json.loads(files["data/reflect_rl/tasks/repos.json"])
    assert (row["name"], row["files"]) == ("eventlib", 6)


def test_trajectories_and_training_data_contain_the_reflections_of_a_chat_teacher(
    runner: Runner, rows: Callable[..., list[Any]]
) -> None:
    made = rows(TEACH, "data/reflect_rl/trajectories.jsonl", TeacherTrajectory)
    assert [one.info for one in made] == ["positive"] * 4 + ["negative0"] * 3
    assert {one.teacher for one in made} == {"m"}
    assert all(one.steps for one in made)
    assert all("walls" in step.reflection for one in made for step in one.steps)
    folder = runner.folder(CONVERT)
    trajectories = "data/reflect_rl/trajectories.jsonl"
    (folder / trajectories).write_bytes(runner.whole(TEACH).files[trajectories])
    runner.run(CONVERT, folder)
    examples = list(read_jsonl(folder / "data/reflect_rl/base/train/sft_reflection.jsonl", Example))
    learned = [step.reflection for one in made if one.status == "solved" for step in one.steps if step.learn]
    assert [example.messages[-1].content for example in examples] == learned != []
