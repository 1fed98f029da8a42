"""Splits: 7:2:1 or with given sizes, disjoint, seeded; AutoExplore's tasks from templates or a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import write_rows
from selfimprove.envs.alfworld.kitchen_games import TRAIN, VALID
from selfimprove.envs.autoexplore.playable import playable_tasks, write_tasks
from selfimprove.envs.autoexplore.world import AutoExploreParams
from selfimprove.envs.registry import listed_env
from selfimprove.envs.splits import draw_splits
from selfimprove.methods.reflect_rl.params import TaskParams
from selfimprove.methods.reflect_rl.tasks import build_splits
from selfimprove.methods.splits import load_split, to_rows
from tests.envs.autoexplore.conftest import FILES, plant, task_for

TAXI = listed_env().make()


def test_without_counts_the_split_is_7_2_1() -> None:
    splits = build_splits(TaskParams(), TAXI, seed=1)
    assert {name: len(ids) for name, ids in splits.items()} == {"train": 210, "dev": 60, "test": 30}


@given(st.integers(0, 2**32), st.integers(1, 100), st.integers(0, 100), st.integers(1, 100))
def test_splits_are_disjoint_and_determined_by_the_seed(seed: int, train: int, dev: int, test: int) -> None:
    cfg = TaskParams(train=train, dev=dev, test=test)
    splits = build_splits(cfg, TAXI, seed=seed)
    everything = [task for ids in splits.values() for task in ids]
    assert len(everything) == len(set(everything)) == train + dev + test
    assert splits == build_splits(cfg, TAXI, seed=seed)
    assert set(everything) <= set(TAXI.task_ids())


def test_splits_of_all_sizes_come_from_one_shuffle() -> None:
    """The order does not depend on the sizes, so an enlarged split keeps its tasks."""
    small = build_splits(TaskParams(train=50, dev=10, test=10), TAXI, seed=4)
    large = build_splits(TaskParams(train=90, dev=10, test=10), TAXI, seed=4)
    assert large["train"][:50] == small["train"]
    assert build_splits(TaskParams(), TAXI, seed=4) != build_splits(TaskParams(), TAXI, seed=5)


def test_few_data_takes_the_first_training_tasks() -> None:
    whole = build_splits(TaskParams(), TAXI, seed=1)
    few = build_splits(TaskParams(few_data=7), TAXI, seed=1)
    assert few == {**whole, "train": whole["train"][:7]}


def test_dev_and_test_use_other_kitchens_than_training() -> None:
    env = listed_env(name="alfworld").make()
    splits = build_splits(TaskParams(train=30, dev=10, test=20), env, seed=1)
    assert set(splits["train"]) <= set(TRAIN)
    assert set(splits["dev"]) | set(splits["test"]) <= set(VALID)


def test_textcraft_has_the_same_splits_as_in_the_other_methods() -> None:
    """Methods with equal numbers of dev and test tasks draw the same tasks, so that they can be compared."""
    env = listed_env(name="textcraft").make()
    splits = build_splits(TaskParams(train=30, dev=10, test=20), env, seed=3)
    others = draw_splits(
        "textcraft", env.task_ids(), {"test": 20, "dev": 10, "train": 18, "demonstrations": 12}, seed=3
    )
    assert (splits["test"], splits["dev"]) == (others["test"], others["dev"])
    assert splits["train"] == others["train"] + others["demonstrations"]
    assert {name: len(ids) for name, ids in build_splits(TaskParams(), env, seed=3).items()} == {
        "train": 867, "dev": 248, "test": 123
    }  # fmt: skip
    with pytest.raises(UserError, match=r"reflect_rl.tasks.train: 1300 tasks of textcraft are requested"):
        build_splits(TaskParams(train=1300, dev=10, test=20), env, seed=3)


def test_too_many_tasks_and_incomplete_split_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="310 tasks are requested, but taxi has 300; request fewer"):
        build_splits(TaskParams(train=200, dev=100, test=10), TAXI, seed=1)
    with pytest.raises(ValueError, match=r"train, dev and test, or none"):
        TaskParams(train=5)


def test_tasks_are_generated_from_the_repositories_contents(tmp_path: Path) -> None:
    plant(tmp_path / "eventlib", FILES)
    tasks = playable_tasks(AutoExploreParams(repos=str(tmp_path))).tasks
    assert "core/hub.py" in {task.filename for task in tasks}
    assert all(task.optimal_path[-1].startswith("id ") for task in tasks)


def test_a_task_file_is_filtered_and_merged(tmp_path: Path) -> None:
    plant(tmp_path / "repos/eventlib", FILES)
    asked = [task_for("core/hub.py"), task_for("core/hub.py"), task_for("gone.py"), task_for("README.md", " ")]
    write_tasks(tmp_path / "given.json", asked)
    env = AutoExploreParams(repos=str(tmp_path / "repos"))
    (task,) = playable_tasks(env, tmp_path / "given.json").tasks
    assert task.filename == "core/hub.py"
    write_tasks(tmp_path / "given.json", [task_for("gone.py")])
    with pytest.raises(UserError, match=r"no task of .*given\.json can be played"):
        playable_tasks(env, tmp_path / "given.json")


def test_dropped_tasks_of_a_task_file_are_counted_by_reason(tmp_path: Path) -> None:
    plant(tmp_path / "repos/eventlib", {**FILES, "logo.png": "pixels " * 9})
    asked = [task_for("core/hub.py"), task_for("gone.py"), task_for("logo.png"), task_for("README.md", " ")]
    write_tasks(tmp_path / "given.json", [*asked, task_for("a.py").model_copy(update={"root": "nowhere"})])
    env = AutoExploreParams(repos=str(tmp_path / "repos"))
    found = playable_tasks(env, tmp_path / "given.json")
    assert [task.filename for task in found.tasks] == ["core/hub.py"]
    assert (found.read, found.dropped) == (5, {"no question": 1, "no such repository": 1, "no such target": 2})


def test_splits_are_read_back_and_foreign_or_missing_ones_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", to_rows("taxi", [3, 1]))
    assert load_split(tmp_path / "train.jsonl", "taxi") == [3, 1]
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: not a task of alfworld"):
        load_split(tmp_path / "train.jsonl", "alfworld")
    with pytest.raises(UserError, match=r"dev\.jsonl does not exist"):
        load_split(tmp_path / "dev.jsonl", "taxi")
