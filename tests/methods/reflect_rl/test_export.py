"""The original's formats: task lists with trajectories, reflected states, {"text"} rows, logs.json; and imports."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, read_jsonl, read_rows, write_jsonl, write_rows
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.autoexplore.repos import Repo, open_repos
from selfimprove.envs.autoexplore.tasks import filter_tasks, read_tasks, split_tasks
from selfimprove.envs.interface import State
from selfimprove.envs.registry import listed_env
from selfimprove.interop.reflect_rl import app, from_text, state_rows, tasks_with_trajectories, to_text
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory, TeachingTask, teach
from selfimprove.methods.reflect_rl.logs import Point, original_points
from selfimprove.methods.reflect_rl.params import GenerateParams
from selfimprove.methods.reflect_rl.prompts import MARKERS, policy_example, reflection_example
from selfimprove.methods.reflect_rl.teacher import ScriptedTeacher
from selfimprove.methods.splits import to_rows
from tests.envs.autoexplore.conftest import FILES, plant, task_for

LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="#"), min_size=1).filter(str.strip)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def taught(env: Any, *jobs: TeachingTask) -> list[TeacherTrajectory]:
    made = [asyncio.run(teach(job, env, ScriptedTeacher(), GenerateParams(), seed=1)) for job in jobs]
    return [one for one in made if one is not None]


def test_exported_tasks_contain_their_trajectories(tmp_path: Path) -> None:
    others = {"core/bus.py": "# A bus that nobody takes.\n" * 20}
    plant(tmp_path / "repo/eventlib", FILES | others)
    write_tasks(tmp_path / TASKS_FILE, [task_for("core/hub.py"), task_for("README.md")])
    write_rows(tmp_path / "train.jsonl", to_rows("autoexplore", [0]))
    env = listed_env(name="autoexplore", repos=str(tmp_path / "repo")).make(tmp_path)
    write_jsonl(
        tmp_path / "made.jsonl",
        taught(env, TeachingTask(task_id=0), TeachingTask(task_id=0, negative=0), TeachingTask(task_id=1)),
    )
    for one in read_jsonl(tmp_path / "made.jsonl", TeacherTrajectory):
        env.reset(one.task_id)
        costs = []
        for step in one.steps:
            [label] = [label for label, words in env.commands().items() if words == (step.done or step.command)] or [""]
            costs.append(env.step(step.done if step.done in env.commands() else label).cost)
        assert one.cost == pytest.approx(sum(costs)) != 0
    run("tasks", tmp_path, tmp_path / "made.jsonl", tmp_path / "train.json", "--split", "train")
    (task,) = json.loads((tmp_path / "train.json").read_text())
    positive, negative = task["trajectories"]
    assert (positive["info"], positive["filename"], positive["model_name"]) == ("positive", "core/hub.py", "scripted")
    assert [step["cmd"] for step in positive["trajectory"]] == ["cd core", "cat hub.py", "id hub.py"]
    assert negative["info"] == "negative0"
    assert negative["filename"] is None  # the negative identifies no file
    assert [step["cmd"] for step in negative["trajectory"]] == ["cd core", "cat bus.py", "cat hub.py"]
    assert [bool(step["reflection"]) for step in negative["trajectory"]] == [False, False, True]
    assert set(task) == {
        "question", "answer", "optimal_path", "filename", "root", "n_level", "model", "trajectories",
    }  # fmt: skip
    run("tasks", tmp_path, tmp_path / "made.jsonl", tmp_path / "all.json")
    assert len(read_tasks(tmp_path / "all.json")) == 2  # can be read back
    for missing in (2, -1):
        write_rows(tmp_path / "train.jsonl", [{"env": "autoexplore", "task_id": missing}])
        with pytest.raises(UserError, match=rf"train\.jsonl: .*{missing}"):
            run("tasks", tmp_path, tmp_path / "made.jsonl", tmp_path / "train.json", "--split", "train")


def test_merged_trajectories_are_all_positive_or_consecutively_numbered_negatives(
    tmp_path: Path,
) -> None:
    told = [  # type: ignore[var-annotated]
        {"model_name": "gpt-4", "filename": None, "info": info, "trajectory": []} for info in ("positive", "negative0")
    ]
    task = task_for("core/hub.py", trajectories=told)
    made = [TeacherTrajectory(id=info, env="autoexplore", task_id=0, info=info, teacher="scripted", status="solved")
            for info in ("positive", "negative0", "negative1")]  # fmt: skip
    once = tasks_with_trajectories([task], made)
    infos = ["positive", "negative0", "positive", "negative1", "negative2"]
    assert [one.info for one in once[0].trajectories] == infos
    write_tasks(tmp_path / "all.json", once)
    back = read_tasks(tmp_path / "all.json")
    assert back == once
    (merged,) = filter_tasks([*back, task], {"eventlib": Repo.open(plant(tmp_path / "eventlib", FILES))})
    assert [one.info for one in merged.trajectories] == [*infos, "positive", "negative3"]


@pytest.mark.parametrize("task_id", [-1, 1])
def test_a_trajectory_whose_task_is_not_in_the_list_is_refused(task_id: int) -> None:
    made = TeacherTrajectory(id="x", env="autoexplore", task_id=task_id, info="positive", teacher="t", status="solved")
    with pytest.raises(UserError, match="trajectory x belongs to no task of the list"):
        tasks_with_trajectories([task_for("core/hub.py")], [made])


def test_an_autoexplore_trajectory_is_not_exported_as_states() -> None:
    made = TeacherTrajectory(id="x", env="autoexplore", task_id=0, info="positive", teacher="t", status="solved")
    with pytest.raises(UserError, match="trajectory x is from AutoExplore; export it with the command `tasks`"):
        state_rows([made])


def test_reflected_states_are_exported_as_one_list(tmp_path: Path) -> None:
    for name, more in (("taxi", set()), ("alfworld", {"problem"})):
        env = listed_env(name=name).make()
        (one,) = taught(env, TeachingTask(task_id=env.task_ids()[0], negative=0))
        write_jsonl(tmp_path / "made.jsonl", [one])
        run("trajectories", tmp_path / "made.jsonl", tmp_path / "rows.json")
        rows = json.loads((tmp_path / "rows.json").read_text())
        assert set(rows[0]) == {"state", "reflection", "action", "reason", "model"} | more
        assert [row["action"] for row in rows] == [step.label for step in one.steps]
        assert rows[0]["state"] == one.steps[0].pre + one.steps[0].post
        first, *others = one.steps
        dropped = first.model_copy(update={"learn": False})  # its reflection revealed the action
        assert state_rows([one.model_copy(update={"steps": [dropped, *others]})]) == rows[1:]


def test_the_original_recognises_the_tomato_games_by_their_problem() -> None:
    """Its gen_sft.py trains only on states whose ``problem`` contains this name; it left out every exported state."""
    env = listed_env(name="alfworld", kinds=["pick_and_place"], thing="tomato", place="microwave").make()
    for task in env.task_ids()[:4]:  # of both sentences
        problems = {row["problem"] for row in state_rows(taught(env, TeachingTask(task_id=task, negative=0)))}
        assert problems == {f"pick_and_place_simple-Tomato-None-Microwave-{task}"}
    (one,) = taught(env, TeachingTask(task_id=env.task_ids()[0], negative=0))
    for sentence, named in (("examine the pen with the desklamp", "look_at_obj_in_light-Pen-None-Desklamp-7"),
                            ("put a clean mug in shelf", "pick_clean_then_place_in_recep-Mug-None-Shelf-7"),
                            ("do as you like", "7")):  # fmt: skip
        step = one.steps[0].model_copy(update={"pre": f"A room.\n\nYour task is to: {sentence}.\n"})
        other = one.model_copy(update={"task_id": 7, "steps": [step]})
        assert [row["problem"] for row in state_rows([other])] == [named]


def test_failed_trajectories_are_not_exported() -> None:
    """The original trains on the last step of every negative, which would be the wrong action."""
    step = {"pre": "s", "post": "\n0. go\n", "labels": ["0"], "label": "0", "command": "cat a.py", "reflection": ""}
    for status in ("unsolved", "blocked"):
        made = TeacherTrajectory.model_validate(
            {"id": "x", "env": "autoexplore", "task_id": 0, "info": "negative0", "teacher": "t", "status": status,
             "steps": [step]}
        )  # fmt: skip
        assert tasks_with_trajectories([task_for("core/hub.py")], [made])[0].trajectories == []
        assert state_rows([made.model_copy(update={"env": "taxi"})]) == []


def test_an_export_without_a_state_is_refused(tmp_path: Path) -> None:
    failed = TeacherTrajectory(id="x", env="taxi", task_id=0, info="positive", teacher="t", status="unsolved")
    write_jsonl(tmp_path / "made.jsonl", [failed])
    with pytest.raises(UserError, match=r"made\.jsonl contains no state that is trained on; name another"):
        run("trajectories", tmp_path / "made.jsonl", tmp_path / "rows.json")
    assert not (tmp_path / "rows.json").exists()


def test_exported_tasks_without_trajectories_have_an_empty_list_of_them(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks.json", [task_for("core/hub.py")])
    assert [row["trajectories"] for row in json.loads((tmp_path / "tasks.json").read_text())] == [[]]


def test_imported_texts_get_the_markers_that_prompts_in_play_have() -> None:
    state, stripped = State("s", "\n0. go\n", ("0",)), MARKERS["stripped"]
    theirs = to_text(policy_example("x", "Drive.\n", state, "R.", "0"))
    ours = policy_example("x", "Drive.\n", state, "R.", "0", stripped)
    assert from_text(theirs, "x", stripped).messages == ours.messages
    assert to_text(ours) == theirs  # the original finds the spaced ones only


@given(LINE, LINE, LINE, st.sampled_from(list(MARKERS.values())))
def test_text_rows_round_trip(pre: Any, reflection: Any, label: Any, markers: Any) -> None:
    pre = pre if markers == MARKERS["spaced"] else pre.rstrip(" ")  # its last space would be taken for the marker's
    state = State(pre, "\n0. go\n", ("0",))
    for example in (
        policy_example("x", "", state, reflection, label.strip(), markers),
        policy_example("x", "", state, None, label.strip(), markers),
        reflection_example("x", "", state, reflection, markers),
    ):
        assert from_text(to_text(example), "x", markers).messages == example.messages


def test_a_reflection_on_a_file_that_contains_the_other_marker_stays_intact() -> None:
    for markers in MARKERS.values():
        example = reflection_example("x", "", State(f"f:{markers.act}3", "\n0. go\n", ("0",)), "Wrong.", markers)
        assert from_text(to_text(example), "x", markers).messages == example.messages


@pytest.mark.parametrize("markers", MARKERS.values(), ids=MARKERS)
def test_only_the_text_after_the_last_of_equal_markers_is_trained_on(markers: Any) -> None:
    example = policy_example("x", "", State(f"f:{markers.act}3", "\n0. go\n", ("0",)), "R.", "0", markers)
    assert from_text(to_text(example), "x", markers).messages == example.messages


def test_sets_are_exported_and_imported(tmp_path: Path) -> None:
    example = policy_example("x", "Drive.\n", State("s", "\n0. go\n", ("0",)), "R.", "0")
    write_jsonl(tmp_path / "set.jsonl", [example])
    run("sft", tmp_path / "set.jsonl", tmp_path / "rows.jsonl")
    assert [row for _, row in read_rows(tmp_path / "rows.jsonl")] == [
        {"text": "Drive.\ns # Analyze:\nR.\n0. go\n # Action:\n0"}
    ]
    run("import-sft", tmp_path / "rows.jsonl", tmp_path / "back.jsonl")
    assert read_jsonl(tmp_path / "back.jsonl", Example)[0].messages == example.messages
    with pytest.raises(UserError, match="there are no markers 'bare'; choose one of "):
        run("import-sft", tmp_path / "rows.jsonl", tmp_path / "none.jsonl", "--markers", "bare")


def test_texts_with_an_empty_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    """The original's oracle steps have no reflection; its loss masks such a text as a whole."""
    texts = ["s # Analyze:\n", "s # Analyze:\nR.", "s # Analyze:\n \n"]
    write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in texts])
    said = run("import-sft", tmp_path / "rows.jsonl", tmp_path / "set.jsonl")
    assert said == "left out: 2 of 3 texts, whose answer is empty\n"
    assert [one.messages[-1].content for one in read_jsonl(tmp_path / "set.jsonl", Example)] == ["R."]
    write_rows(tmp_path / "rows.jsonl", [{"text": texts[0]}])
    with pytest.raises(UserError, match=r"rows\.jsonl: the answer of every text is empty; name another file"):
        run("import-sft", tmp_path / "rows.jsonl", tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("row", [{}, {"text": 3}, {"text": "no marker at all"}])
def test_a_text_without_a_marker_is_an_error(row: Any) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl, line 4: the text contains neither '# Action:'"):
        from_text(row, "rows.jsonl, line 4")


def test_a_filtered_copy_keeps_emptied_folders_and_lists_the_same_folders(tmp_path: Path) -> None:
    """As in the original. A copy once listed fewer folders than the repository itself."""
    plant(tmp_path / "repos" / "one", {"a.py": "x = 1  # long enough", "bin/deep/tool.exe": "not of a kind to explore"})
    run("filter-repo", tmp_path / "repos", tmp_path / "filtered")
    assert [str(path.relative_to(tmp_path / "filtered")) for path in sorted((tmp_path / "filtered").rglob("*"))] == [
        "one", "one/a.py", "one/bin", "one/bin/deep",
    ]  # fmt: skip
    copied, own = (Repo.open(tmp_path / folder / "one").tree.folders for folder in ("filtered", "repos"))
    assert copied == own


def test_filtered_repositories_are_copied_and_dropped_files_are_reported(tmp_path: Path) -> None:
    plant(tmp_path / "repos/eventlib", {**FILES, ".hidden.py": "x = 1\n" * 9, "logo.png": "pixels " * 9})
    plant(tmp_path / "repos/other", {"a.py": "x = 1\n" * 9, "tests/test_a.py": "x = 1\n" * 9})
    (tmp_path / "repos/other/away.py").symlink_to("/etc/passwd")
    said = run("filter-repo", tmp_path / "repos", tmp_path / "filtered")
    assert said.splitlines()[0].endswith("bytes; dropped: 1 hidden, 1 suffix")
    assert said.splitlines()[1] == "other: 1 files, 54 bytes; dropped: 1 ignored, 1 special"
    copied = {str(path.relative_to(tmp_path / "filtered")) for path in (tmp_path / "filtered").rglob("*.*")}
    assert copied == {*(f"eventlib/{name}" for name in FILES), "other/a.py"}
    assert open_repos(tmp_path / "filtered") == {
        name: Repo.open(tmp_path / "filtered" / name) for name in ("eventlib", "other")
    }
    with pytest.raises(UserError, match="filtered already exists"):
        run("filter-repo", tmp_path / "repos", tmp_path / "filtered")


def test_repositories_without_remaining_files_are_reported_and_not_copied(tmp_path: Path) -> None:
    plant(tmp_path / "repos/eventlib", FILES)
    plant(tmp_path / "repos/empty", {"logo.png": "pixels " * 9, "a.py": "x"})
    plant(tmp_path / "repos/tests", {"a.py": "x = 1\n" * 9})
    (tmp_path / "repos/none").mkdir()
    (tmp_path / "repos/.git").mkdir()
    (tmp_path / "repos/linked").symlink_to(tmp_path / "repos/eventlib")
    said = run("filter-repo", tmp_path / "repos", tmp_path / "filtered").splitlines()
    assert [line for line in said if not line.startswith("eventlib: 6 files")] == [
        "empty: 0 files, 0 bytes; dropped: 1 short, 1 suffix",
        "linked: 0 files, 0 bytes; dropped: 1 special",
        "none: 0 files, 0 bytes; dropped: nothing",
        "tests: 0 files, 0 bytes; dropped: 1 ignored",
    ]
    assert [path.name for path in (tmp_path / "filtered").iterdir()] == ["eventlib"]


def test_a_list_of_tasks_is_split_into_the_originals_three_files(tmp_path: Path) -> None:
    write_tasks(tmp_path / "data.json", [task_for("core/hub.py", f"Where is {i}?") for i in range(10)])
    assert run("split", tmp_path / "data.json", tmp_path / "parts", "--seed", "3").splitlines() == [
        "train: 7 tasks", "validate: 2 tasks", "test: 1 tasks",
    ]  # fmt: skip
    parts = [read_tasks(tmp_path / f"parts/{name}.json") for name in ("train", "validate", "test")]
    assert tuple(parts) == tuple(split_tasks(read_tasks(tmp_path / "data.json"), 3))
    with pytest.raises(UserError, match=r"data\.json cannot be created as a folder"):
        run("split", tmp_path / "data.json", tmp_path / "data.json")


def test_a_task_that_several_files_contain_is_in_one_part_only(tmp_path: Path) -> None:
    tasks = [task_for("core/hub.py", f"Where is {i}?") for i in range(20)]
    (tmp_path / "tasks").mkdir()
    for name in ("eventlib", "data"):  # the original's teacher writes all tasks once more, into data.json
        write_tasks(tmp_path / f"tasks/{name}.json", tasks)
    run("split", tmp_path / "tasks", tmp_path / "parts")
    parts = [read_tasks(tmp_path / f"parts/{name}.json") for name in ("train", "validate", "test")]
    assert [len(part) for part in parts] == [14, 4, 2]
    assert len({task.question for part in parts for task in part}) == 20


def test_curves_of_the_current_folder_include_its_ancestors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"iter": 0, "loss": [0.5, None], "critic_loss": None, "cost": -1.0, "succ": 0.5, "log": []}
    for name in ("001_rl_finetune", "002_rl_finetune"):
        (tmp_path / name / "checkpoint-1").mkdir(parents=True)
        (tmp_path / name / "checkpoint-1/logs.json").write_text(json.dumps([row]))
    (tmp_path / "002_rl_finetune/setting.yml").write_text("load_dir: results/001_rl_finetune/checkpoint-1/\n")
    for here, named in (("002_rl_finetune", "."), ("002_rl_finetune/checkpoint-1", "..")):
        monkeypatch.chdir(tmp_path / here)
        run("curves", named, tmp_path / "curves.csv")
        assert [line.split(",")[:2] for line in (tmp_path / "curves.csv").read_text().splitlines()[1:]] == [
            ["002_rl_finetune", "1.0"], ["002_rl_finetune", "2.0"],
        ]  # fmt: skip


@pytest.mark.parametrize("source", ["train.json", "."])
def test_a_split_never_replaces_the_file_that_it_reads(tmp_path: Path, source: str) -> None:
    write_tasks(tmp_path / "train.json", [task_for("core/hub.py", f"Where is {i}?") for i in range(10)])
    with pytest.raises(UserError, match=r"train\.json is a file to split, which its own part would replace; name"):
        run("split", tmp_path / source, tmp_path)
    assert len(read_tasks(tmp_path / "train.json")) == 10
    assert [path.name for path in tmp_path.iterdir()] == ["train.json"]


def test_logs_are_exported_in_the_originals_format_and_invalid_rows_are_refused(tmp_path: Path) -> None:
    step = {"step": 0, "Q_value": -1.0, "logprob": math.log(0.25), "entropy": 1.0, "cost": 0.05, "prompt": "p",
            "generation": "1"}  # fmt: skip
    row = {"iter": 1, "level": "pickup", "loss": [0.5, None], "critic_loss": None, "cost": -1.0, "succ": 0.5,
           "entropy": 1.0, "steps": 1, "log": [{"batch": 0, "detail": [step]}]}  # fmt: skip
    write_rows(tmp_path / "log.jsonl", [row])
    run("logs", tmp_path / "log.jsonl", tmp_path / "logs.json")
    (back,) = json.loads((tmp_path / "logs.json").read_text())
    assert set(back) == {"iter", "loss", "critic_loss", "cost", "succ", "log"}
    assert back["iter"] == 0  # the original's iterations count from 0
    assert original_points(tmp_path / "logs.json") == [Point(1, 0.5, -1.0, 0.5)]
    detail = back["log"][0]["detail"][0]
    assert detail["prob"] == pytest.approx(0.25)
    assert detail["generation"] == {"role": "assistant", "content": "1"}
    wrong = [
        json.dumps(row).replace(json.dumps(math.log(0.25)), text) for text in ("1000", "0.5", "null", f"-1{0:0400}")
    ]
    wrong += [json.dumps(row | other) for other in ({"cost": "abc"}, {"loss": "xy"}, {"iter": 0}, {"iter": 1.5})]
    wrong += [json.dumps(row | {key: "big"}).replace('"big"', "1e999") for key in ("loss", "cost")]
    for bad in ('{"iter": 1}', *wrong):
        (tmp_path / "log.jsonl").write_text(bad + "\n")
        with pytest.raises(UserError, match=r"log\.jsonl, line 1: not a row of a log"):
            run("logs", tmp_path / "log.jsonl", tmp_path / "logs.json")
