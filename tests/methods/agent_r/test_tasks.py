"""Splits of tasks (frozen, disjoint, reproducible) and the demonstrations built from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import write_rows
from selfimprove.envs.own import TextEnv
from selfimprove.envs.sciworld.games import ids_of_games
from selfimprove.methods.agent_r.params import SearchParams, TaskParams
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.reply import parse_action
from selfimprove.methods.agent_r.revise import REVISION_THOUGHTS
from selfimprove.methods.agent_r.tasks import (
    SPLITS,
    build_splits,
    check_disjoint,
    demonstrate,
    read_ids,
    select,
    texts,
)
from selfimprove.methods.splits import load_split, split_hash, to_rows
from tests.methods.agent_r.corridor import Corridor
from tests.support.real_data import real

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {"demonstrations": 4, "train": 10, "dev": 3, "test": 8}


def splits(seed: Any = 3, **params: Any) -> dict:
    return build_splits(TaskParams(**{**COUNTS, **params}), Corridor(), seed=seed)


def write(folder: Path, **files: object) -> dict[str, str]:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return {name: str(folder / f"{name}.json") for name in files}


def test_splits_have_the_requested_sizes_and_share_no_id() -> None:
    made = splits()
    assert {name: len(made[name]) for name in SPLITS} == COUNTS
    everything = [i for name in SPLITS for i in made[name]]
    assert sorted(everything) == Corridor().task_ids()  # 25 tasks in all: each exactly once
    assert made["test"] != sorted(made["test"])


def test_splits_are_the_same_in_another_process_and_differ_under_another_seed() -> None:
    here = {name: split_hash(ids) for name, ids in splits().items()}
    program = (
        "import json, tests.methods.agent_r.test_tasks as t\n"
        "print(json.dumps({n: t.split_hash(ids) for n, ids in t.splits().items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == here
    assert not set(here.values()) & {split_hash(ids) for ids in splits(seed=4).values()}


def test_a_smaller_test_split_is_a_prefix_of_a_larger_one() -> None:
    assert splits(test=5)["test"] == splits()["test"][:5]


def test_too_few_tasks_are_reported_with_the_name_of_the_split() -> None:
    with pytest.raises(UserError, match=r"agent_r\.tasks\.demonstrations: 5 tasks of corridor are requested, but 4 of"):
        splits(demonstrations=5)


def test_the_user_s_training_and_test_lists_are_kept_apart(tmp_path: Path) -> None:
    test, train = [3, 1, 4], list(range(5, 25))
    made = splits(files=write(tmp_path, train=train, test=test), test=3, train=9, dev=4, demonstrations=7)
    assert sorted(made["test"]) == sorted(test)
    assert sorted([*made["train"], *made["dev"], *made["demonstrations"]]) == train
    # With a test list only, the other splits share all remaining tasks.
    made = splits(files=write(tmp_path, test=test), test=3, train=22, dev=0, demonstrations=0)
    assert sorted(made["train"]) == [i for i in range(25) if i not in test]


def test_ids_in_both_lists_are_named(tmp_path: Path) -> None:
    files = write(tmp_path, train=list(range(12)), test=[20, 7, 3, 21])
    with pytest.raises(UserError, match="task 3, 7 is in both the training file and the test file; remove it"):
        splits(files=files)
    with pytest.raises(UserError, match="task 0, 1, 2, 3, 4 and 7 more is in both a and b"):
        check_disjoint({"a": range(12), "b": range(12), "c": []})


@pytest.mark.parametrize(
    "value",
    [
        [{"item_id": "corridor_7"}, {"item_id": "corridor_2"}],
        {"7": 4, "2": 9},
        {"note": "numbers and ids", "ids": {"4": [7], "1": [2, 7]}},
        {"4": [7], "1": [2, 7]},
        [7, 2],
        ["corridor_7", "2"],
    ],
)
def test_every_published_format_of_a_list_of_ids_is_read(tmp_path: Path, value: object) -> None:
    assert read_ids(Path(write(tmp_path, ids=value)["ids"]), "corridor") == [7, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([{"item_id": "webshop_7"}], "is not a list of task ids of corridor"),
        ([{"id": 7}], "None is not an id"),
        ([True], "True is not an id"),
        ([{"item_id": "corridor_7_1"}], "'corridor_7_1' is not an id"),
        ({"4": [7], "note": "lists"}, "invalid literal"),
        ("7", "expected a list or an object"),
        ([], "contains no task id"),
    ],
)
def test_a_malformed_list_of_ids_is_named_by_its_file_and_its_fault(tmp_path: Path, value: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_ids(Path(write(tmp_path, ids=value)["ids"]), "corridor")
    assert str(refused.value).startswith(f"{tmp_path / 'ids.json'} ")
    assert said in str(refused.value)


def test_a_missing_list_a_list_that_is_not_json_and_unknown_ids_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json does not exist; .* fix the path"):
        read_ids(tmp_path / "gone.json", "corridor")
    (tmp_path / "torn.json").write_text('[{"item_id": "corr')
    with pytest.raises(UserError, match=r"torn\.json is not JSON"):
        read_ids(tmp_path / "torn.json", "corridor")
    with pytest.raises(UserError, match=r"files\.test: corridor has no task 25, 99; remove it from"):
        splits(files=write(tmp_path, train=[1, 2], test=[3, 25, 99]))


def chosen(split: list[int], **params: Any) -> list[int]:
    return select(split, SearchParams(**{"tasks": 3, **params}))


def test_tasks_are_selected_by_position_and_by_a_range_of_ids() -> None:
    split = [9, 2, 7, 4, 5, 0]
    assert chosen(split) == [9, 2, 7]
    assert chosen(split, offset=2) == [7, 4, 5]
    assert chosen(split, offset=2, limit=1) == [7]
    assert chosen(split, min=4) == [9, 7, 4]
    assert chosen(split, min=4, max=9) == [7, 4, 5]  # max itself is excluded, as in the original's slices
    assert chosen(split, min=5, max=8) == [7, 5]


def test_an_empty_range_and_a_range_beyond_the_end_of_the_split_are_refused() -> None:
    with pytest.raises(
        UserError, match="3 tasks from offset 4 are requested, but the training split has 6; request few"
    ):
        chosen([9, 2, 7, 4, 5, 0], offset=4)
    with pytest.raises(UserError, match="the training split has 0 in that range of ids"):
        chosen([9, 2], min=3, max=9)


def test_a_split_file_round_trips_and_lines_of_other_tasks_are_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "dev.jsonl", to_rows("corridor", [5, 0, 3]))
    assert load_split(tmp_path / "dev.jsonl", "corridor") == [5, 0, 3]
    with pytest.raises(
        UserError, match=r"dev\.jsonl, line 1: not a task of webshop; run the method's data stage again"
    ):
        load_split(tmp_path / "dev.jsonl", "webshop")
    write_rows(tmp_path / "dev.jsonl", [*to_rows("corridor", [5]), {"env": "corridor", "task_id": "7"}])
    with pytest.raises(UserError, match=r"dev\.jsonl, line 2: not a task of corridor"):
        load_split(tmp_path / "dev.jsonl", "corridor")


def test_a_demonstration_opens_like_an_episode_and_trains_on_every_reply_of_the_expert() -> None:
    env = Corridor()
    example = demonstrate(env, 16)  # key in room 3, door in room 1
    assert example.source == "corridor-16"
    first = env.reset(16)
    assert example.messages[:4] == opening(env.instruction, first)
    steps = example.messages[4:]
    assert [m.role for m in steps] == ["assistant", "user"] * 6 + ["assistant"]
    assert [m.weight for m in steps] == [1.0, 0.0] * 6 + [1.0]
    actions = [parse_action(m.content) for m in steps[::2]]
    assert actions == ["right"] * 3 + ["take key"] + ["left"] * 2 + ["open door"]
    assert steps[0].content == "Thought: I go on.\nAction: right"
    assert steps[1].content == "You are in room 1 of 5."  # one line
    assert all(env.step(action) for action in actions[:-1])
    assert env.step(actions[-1]).reward == 1


def test_a_demonstration_can_also_train_on_observations_but_not_on_the_instruction() -> None:
    plain, both = demonstrate(Corridor(), 16), demonstrate(Corridor(), 16, 0.25)
    assert [(m.role, m.content) for m in both.messages] == [(m.role, m.content) for m in plain.messages]
    assert [m.weight for m in both.messages] == [0, 0, 0, 0.25, *[1.0, 0.25] * 6, 1.0]


def test_a_task_that_the_expert_fails_is_named() -> None:
    class Lost(Corridor):
        def expert(self) -> list:
            return super().expert()[:-1]

    with pytest.raises(UserError, match=r"corridor, task 16: the expert ends with reward 0\.5 instead of 1"):
        demonstrate(Lost(), 16)

    class Idle(Corridor):
        def expert(self) -> list:
            return []

    with pytest.raises(UserError, match=r"corridor, task 16: the expert ends with reward 0 instead of 1;"):
        demonstrate(Idle(), 16)


class Button(TextEnv):
    instruction = "Push it."

    def __init__(self, action: str) -> None:
        self.actions = [action]

    def begin(self, task_id: int) -> str:
        return "A button."

    def act(self, action: str) -> tuple[str, float, bool]:
        return "It is pushed.", 1.0, True


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("1. push", r"button, task 0: the expert ends with reward 0 instead of 1 \(its action '1\. push' is read"),
        ("wait", r"button, task 0: the expert's action 'wait' never reaches the environment"),
    ],
    ids=["number", "wait"],
)
def test_a_demonstration_with_an_action_that_no_reply_can_express_is_refused(action: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        demonstrate(Button(action), 0)


def test_the_tokenizer_s_texts_are_all_messages_and_one_revision_turn_for_each_example() -> None:
    examples = [demonstrate(Corridor(), i) for i in range(11)]
    assert len(REVISION_THOUGHTS) == 10
    revisions = [f"Thought: {thought}\nAction: wait" for thought in (*REVISION_THOUGHTS, REVISION_THOUGHTS[0])]
    messages = [message.content for example in examples for message in example.messages]
    assert Counter(row["text"] for row in texts(examples)) == Counter([*messages, *revisions])


@pytest.mark.parametrize(
    ("env", "train", "counts"),
    [("textcraft", "train_clean", (374, 100)), ("webshop", "train_clean", (3930, 200)),
     ("sciworld", "train_suggested", (207, 200))],
)  # fmt: skip
def test_the_published_lists_are_read_and_share_no_id(env: str, train: str, counts: tuple) -> None:
    lists = {name: read_ids(real(f"{env}/{env}_{name}.json"), env) for name in (train, "test")}
    check_disjoint(lists)
    assert (len(lists[train]), len(lists["test"])) == counts
    if env == "textcraft":
        assert sorted(lists["test"]) == [*range(31), *range(140, 181), *range(420, 445), *range(533, 536)]


class Sciences(Corridor):
    """An environment with ScienceWorld's name and ids; drawing tasks does not need its simulator."""

    name = "sciworld"

    def task_ids(self) -> range:  # type: ignore[override]
        return range(4639)

    def ids_of_games(self, *chosen: Any) -> list[int]:
        return ids_of_games(*chosen)


def test_the_loop_over_task_numbers_takes_its_variations_from_a_training_list(tmp_path: Path) -> None:
    train, test = [100, 99, 98, 4140, 4141], [4136, 4200]
    files = write(tmp_path, train=train, test=test)
    counts = {"demonstrations": 0, "train": 2, "dev": 0, "test": 2}
    games = {"start": 0, "stop": 2, "variations": 1}
    tasks = TaskParams.model_validate({**counts, "files": files, "games": games})
    made = build_splits(tasks, Sciences(), seed=3)
    assert set(made["train"]) == {100, 4140}  # one variation of each of the first two task numbers
    assert set(made["test"]) == set(test)  # the loop covers training tasks only
    files = write(tmp_path, train=train)
    tasks = TaskParams.model_validate({**counts, "files": files, "games": {"start": 0, "stop": 3}})
    with pytest.raises(UserError, match="the sciworld training list has no task number"):
        build_splits(tasks, Sciences(), seed=3)


def test_without_lists_the_loop_over_task_numbers_is_the_pool_of_all_splits() -> None:
    counts = {"demonstrations": 1, "train": 2, "dev": 1, "test": 2}
    tasks = TaskParams.model_validate({**counts, "games": {"start": 1, "stop": 3, "variations": 3}})
    made = build_splits(tasks, Sciences(), seed=3)
    assert sorted(i for ids in made.values() for i in ids) == sorted(ids_of_games(1, 3, 3, None))


def test_an_empty_range_of_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="7 is not below max 7, so no task id is in range; lower min or raise max"):
        SearchParams.model_validate({"tasks": 1, "min": 7, "max": 7})
