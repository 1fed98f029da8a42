"""Bad input to Reflect-RL's real stages: one sentence, exit code 2, nothing published and nothing lost.

Tested elsewhere: params in test_params; further cases of the individual parts in test_tasks, test_curriculum,
test_rollout (costs that are not numbers), test_learn and tests/envs; teachers that fail temporarily in test_generate
and contracts/test_kill.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.envs.labels import LABELS
from tests.engines.http_endpoint import Reply, Seen, answer, endpoint
from tests.envs.autoexplore.conftest import FILES, plant, task_for
from tests.pipeline.workbench import Workbench

pytestmark = pytest.mark.timeout(600)

TASKS = "data/reflect_rl/tasks"
AUTO = {"name": "autoexplore"}


def refused(bench: Workbench, folder: Path, stage: str, item: str = "") -> str:
    """The one sentence with which a stage fails; asserts that everything published before is unchanged."""
    return bench.refused(folder, f"reflect_rl.{stage}", item)


def done(bench: Workbench, folder: Path, stage: str, item: str = "") -> list[str]:
    """Run a stage that succeeds; returns the lines that it printed."""
    return bench.done(folder, f"reflect_rl.{stage}", item)


def with_(**section: Any) -> dict[str, Any]:
    return {"reflect_rl": section}


def exploring(repos: str, **tasks: Any) -> dict[str, Any]:
    """AutoExplore on a folder of repositories, with few tasks."""
    few = {"train": 2, "dev": 1, "test": 1}
    return with_(env={"name": "autoexplore", "labels": "single", "repos": repos}, tasks=few | tasks)


# Repositories and tasks of AutoExplore


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"picture.png": "pixels " * 9, "_private.py": "x = 1\n" * 9, "tests/test_a.py": "x = 1\n" * 9}, "nothing to"),
        ({}, "nothing to explore"),
        ({"a.py": "short", "b.md": "äöü " * 9}, "nothing to explore"),
    ],
)
def test_a_repository_with_nothing_to_explore_is_refused(
    reflect_bench: Workbench, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", exploring("repos"))
    (folder / "repos").mkdir()
    plant(folder / "repos", files)
    sentence = refused(reflect_bench, folder, "data")
    assert said in sentence
    assert "name a folder with readable text files" in sentence


def test_unreadable_files_are_counted_and_the_first_is_named(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", exploring("repos"))
    (folder / "repos").mkdir()
    for name in ("b.py", "a.py"):
        (folder / "repos" / name).write_bytes(b"\xff\xfe\x00binary" * 9)
    assert "(2 of its files cannot be read; the first is 'a.py')" in refused(reflect_bench, folder, "data")
    plant(folder / "repos", FILES)  # if other files are readable, these are skipped and counted
    assert not done(reflect_bench, folder, "data")
    (row,) = json.loads((folder / TASKS / "repos.json").read_text())
    assert (row["files"], row["dropped"]) == (len(FILES), {"unreadable": 2})


def test_a_missing_folder_of_repositories_is_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", exploring("nowhere"))
    assert "nowhere: cannot be listed (No such file or directory)" in refused(reflect_bench, folder, "data")


def test_a_task_whose_target_file_is_missing_is_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    overlay = exploring("repos")
    overlay["reflect_rl"]["agents"] = {"oracle": {"kind": "expert"}}
    folder = reflect_bench.copy(tmp_path / "bench", overlay)
    plant(folder / "repos/eventlib", FILES)
    done(reflect_bench, folder, "data")
    (folder / "repos/eventlib/core/hub.py").unlink()
    for stage, item in (("generate", ""), ("agent", "oracle")):
        sentence = refused(reflect_bench, folder, stage, item)
        assert "its target 'core/hub.py' is missing from 'eventlib'" in sentence
        assert "restore the file or remove the task" in sentence


def test_a_task_file_without_a_playable_task_or_valid_json_is_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", exploring("repos", file="given.json"))
    plant(folder / "repos/eventlib", FILES)
    (folder / "given.json").write_text(json.dumps([task_for("gone.py").model_dump(mode="json")]))
    assert "no task of given.json can be played" in refused(reflect_bench, folder, "data")
    (folder / "given.json").write_text('[{"question": "Where')
    assert "given.json is not JSON" in refused(reflect_bench, folder, "data")


def test_unplayable_tasks_of_a_task_file_are_dropped_and_counted(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", exploring("repos", file="given.json"))
    plant(folder / "repos/eventlib", FILES)
    asked = [task_for(name) for name in [*list(FILES)[:4], "gone.py", "logo.png"]]
    (folder / "given.json").write_text(json.dumps([task.model_dump(mode="json") for task in asked]))
    told = [line for line in done(reflect_bench, folder, "data") if "dropped" in line]
    assert told == ["reflect_rl-data: 2 of 6 tasks of given.json cannot be played and were dropped: 2 no such target."]
    assert json.loads((folder / TASKS / "dropped.json").read_text()) == {"no such target": 2}
    assert len(json.loads((folder / TASKS / "tasks.json").read_text())) == 4


# Teachers behind an endpoint


def asking(url: str, **more: Any) -> dict[str, Any]:
    """AutoExplore with questions from an endpoint."""
    overlay = exploring("repos", teacher="asker")
    asker = {"engine": "openai", "base_url": url, "model": "m", "api_key_env": None, "backoff": 0}
    overlay["reflect_rl"]["engines"] = {"asker": asker | more}
    return overlay


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (answer("I would rather talk about the weather."), "6 files contain no usable QUERY and ANSWER"),
        (Reply(status=500), "the teacher failed on all 6 files"),
    ],
)
def test_a_teacher_without_a_usable_answer_is_refused(
    reflect_bench: Workbench, tmp_path: Path, reply: Reply, said: str
) -> None:
    with endpoint(then=lambda seen: reply) as server:
        folder = reflect_bench.copy(tmp_path / "bench", asking(server.url, tries=2))
        plant(folder / "repos/eventlib", FILES)
        assert said in refused(reflect_bench, folder, "data")


def test_an_unreachable_teacher_is_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    with endpoint() as server:
        pass
    folder = reflect_bench.copy(tmp_path / "bench", asking(server.url))
    plant(folder / "repos/eventlib", FILES)
    assert f"no endpoint answers at {server.url}" in refused(reflect_bench, folder, "data")


def test_files_on_which_the_teacher_failed_have_no_tasks_and_are_reported(
    reflect_bench: Workbench, tmp_path: Path
) -> None:
    def teacher(seen: Seen) -> Reply:
        asked = seen.body["messages"][-1]["content"]
        if "File: run.sh" in asked:
            return Reply(status=400, body=b'{"error": {"message": "too rude"}}')
        return answer(f"QUERY: What is {len(asked)}?\nANSWER: This.")

    with endpoint(then=teacher) as server:
        folder = reflect_bench.copy(tmp_path / "bench", asking(server.url))
        plant(folder / "repos/eventlib", FILES)
        told = [line for line in done(reflect_bench, folder, "data") if "failed" in line]
    assert len(told) == 1
    assert "the teacher failed on 1 of 6 files, which have no tasks" in told[0]
    assert "too rude" in told[0]
    counts = json.loads((folder / TASKS / "asked.json").read_text())
    assert (counts["files"], counts["failed"], counts["tasks"]) == (6, 1, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": AUTO, "tasks": {"teacher": "nobody"}}, "tasks.teacher: there is no engine 'nobody'"),
        ({"env": AUTO, "tasks": {"teacher": "teacher"}}, "tasks.teacher: a scripted engine cannot write questions"),
        (
            {"env": AUTO, "tasks": {"teacher": "policy"}},
            "tasks.teacher: 'policy' uses the policy, which is not trained yet",
        ),
        ({"generate": {"teacher": "policy"}}, "generate.teacher: 'policy' uses the policy"),
        ({"tasks": {"teacher": "teacher", "file": "x.json"}}, "file and teacher are alternative sources of tasks"),
        ({"env": AUTO | {"keyword_costs": {"Error": float("nan")}}}, "env.keyword_costs.Error"),
    ],
)
def test_invalid_params_of_teachers_and_rewards_are_refused(
    reflect_bench: Workbench, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refused(reflect_bench, reflect_bench.copy(tmp_path / "bench", with_(**changes)), "data")


# Labels, reflectors, curricula, checkpoints


def test_labels_that_are_not_single_tokens_are_listed_and_the_smaller_set_is_suggested(
    reflect_bench: Workbench, tmp_path: Path
) -> None:
    overlay = with_(env={"name": "alfworld", "labels": "full"}, evaluate={"levels": []})
    folder = reflect_bench.copy(tmp_path / "bench", overlay)
    done(reflect_bench, folder, "data")
    for model in ("policy", "reflector"):
        (folder / f"models/reflect_rl/{model}/environment.json").unlink()
    for stage, item in (("reinforce", "reflect_rl"), ("evaluate", "policy")):
        sentence = refused(reflect_bench, folder, stage, item)
        assert "10, 11, 12, 13, 14 and 185 more" in sentence
        assert f"set reflect_rl.env.labels: single (the {len(LABELS['single'])} one-character labels)" in sentence


def test_a_curriculum_that_leaves_a_level_without_iterations_is_refused(
    reflect_bench: Workbench, tmp_path: Path
) -> None:
    overlay = with_(iterations={"reflect_rl": {"rl": {"max_steps": 2}}})
    sentence = refused(reflect_bench, reflect_bench.copy(tmp_path / "bench", overlay), "reinforce", "reflect_rl")
    assert "2 rounds leave none for level 'pickup'" in sentence
    assert "raise max_steps" in sentence


def test_a_checkpoint_of_another_environment_is_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", with_(env={"name": "alfworld", "labels": "single"}))
    done(reflect_bench, folder, "data")
    for stage, item in (("reinforce", "reflect_rl"), ("evaluate", "policy")):
        sentence = refused(reflect_bench, folder, stage, item)
        assert "models/reflect_rl/policy was trained to act in taxi, not in alfworld" in sentence


def test_splits_of_another_environment_are_refused(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path / "bench", with_(env={"name": "alfworld", "labels": "single"}))
    assert "train.jsonl, line 1: not a task of alfworld" in refused(reflect_bench, folder, "generate")
