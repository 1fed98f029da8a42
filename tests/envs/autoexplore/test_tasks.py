"""Tasks: generated from the contents of files, filtered, merged, split, and grouped into levels by depth."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import dump_line
from selfimprove.envs.autoexplore.env import AutoExplore
from selfimprove.envs.autoexplore.questions import asked_about, docstrings, find_facts, make_tasks
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.tasks import (
    depth_levels,
    filter_tasks,
    optimal_path,
    reachable,
    read_tasks,
    split_tasks,
)


def test_code_text_and_data_files_each_have_their_own_questions(repo: Repo) -> None:
    tasks = make_tasks({"eventlib": repo}, seed=0, per_file=9)
    assert {task.filename for task in tasks} == set(repo.files)
    asked = {task.question for task in tasks}
    assert any("Hub" in question and "Forwards events to subscribers." in question for question in asked)
    assert any("replay" in question for question in asked)
    assert any("city, year, visitors" in question for question in asked)
    assert any('"Installing it"' in question for question in asked)
    assert any('"retries"' in question for question in asked)
    assert any("function start" in question for question in asked)
    assert all(task.filename in task.answer for task in tasks)
    assert {(task.root, task.model) for task in tasks} == {("eventlib", "template")}


def test_tasks_are_determined_by_the_seed(repo: Repo) -> None:
    first = make_tasks({"eventlib": repo}, seed=1, per_file=1)
    assert first == make_tasks({"eventlib": repo}, seed=1, per_file=1)
    assert first != make_tasks({"eventlib": repo}, seed=2, per_file=1)
    assert len({task.filename for task in first}) == len(first)


def test_every_question_has_exactly_one_right_answer(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    long = "# words that make it long enough\n" * 20
    files = {
        "a.py": f"class Same:\n    pass\n\n\nclass OnlyA:\n    pass\n{long}",
        "b.py": f"class same:\n    pass\n{long}",
    }
    tasks = make_tasks({"r": Repo.open(make_folder("r", files))}, seed=0, per_file=5)
    assert [task.filename for task in tasks] == ["a.py"]
    assert "OnlyA" in tasks[0].question


def test_which_files_are_asked_about(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    long = "def one():\n    pass\n" + "# words that make it long enough\n" * 20
    asked = ["layout.py", "a/b/deep.py", "route.py", "contest.py", "git_notes.py"]
    passed_over = ["a/b/c/deeper.py", "out/a.py", "test_a.py", "a_test.py", "a/test/b.py", "x.out.py", "output/b.py",
                   "conftest.py", "test1.py", "testdata/a.py", "pytest_run.py"]  # fmt: skip
    repo = Repo.open(make_folder("r", dict.fromkeys([*asked, *passed_over], long)))
    assert sorted(asked_about(repo, seed=0)) == sorted(asked)
    assert asked_about(repo, seed=0) != asked_about(repo, seed=5)
    assert asked_about(repo, seed=0, max_files=2) == asked_about(repo, seed=0)[:2]
    with pytest.raises(
        UserError, match="no questions can be generated about r; name a folder whose files have docstrings"
    ):
        make_tasks({"r": repo}, seed=0)  # every file defines one(): no answer is unique


def test_no_question_is_about_a_file_of_fewer_than_50_tokens(
    make_folder: Callable[[str, dict[str, str]], Path],
) -> None:
    text = "def name():\n    pass\n"  # 6 tokens
    words = {"short.py": 43, "long.py": 44}
    files = {name: text.replace("name", name[:-3]) + " word" * count for name, count in words.items()}
    repo = Repo.open(make_folder("r", files))
    assert [task.filename for task in make_tasks({"r": repo}, seed=0)] == ["long.py"]


@given(st.text(), st.sampled_from(["a.py", "a.md", "a.csv", "a.json", "a.sh", "a.go", "a.ipynb"]))
def test_any_text_can_be_read_and_facts_fit_on_a_line(text: str, name: str) -> None:
    for fact in find_facts(name, text):
        assert fact.name.isprintable()
    docstrings(text)


@pytest.mark.parametrize("text", ["(" * 50_000, " " * 500_000, "#" * 500_000, " \n" * 200_000, '"""' + "a " * 200_000])
def test_hostile_sources_can_be_read_and_have_no_docstrings(text: str) -> None:
    for name in ("a.py", "a.md", "a.yaml", "a.java", "a.sh", "a.csv"):
        list(find_facts(name, text))
    assert docstrings(text) == {}


def test_the_optimal_path_descends_reads_and_identifies(repo: Repo) -> None:
    path = optimal_path("core/deep/wire format.py")
    assert path == ["cd core", "cd deep", 'cat "wire format.py"', 'id "wire format.py"']
    assert all(task.optimal_path == optimal_path(task.filename) for task in make_tasks({"eventlib": repo}, 0))
    assert all(task.n_level == task.depth == task.filename.count("/") for task in make_tasks({"eventlib": repo}, 0))


def test_files_that_are_not_listed_cannot_be_reached(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    repo = Repo.open(make_folder("r", dict.fromkeys([f"{i:03}.py" for i in range(130)] + ["zz/a.py"], "text " * 9)))
    assert reachable(repo, "000.py")
    assert not reachable(repo, "129.py")  # 252 labels suffice for 126 files
    assert not reachable(repo, "zz/a.py")
    assert not reachable(repo, "missing.py")
    assert not reachable(repo, "zz")


def test_tasks_without_a_question_or_target_are_dropped_and_paths_are_repaired(repo: Repo, make_task: Any) -> None:
    wire = "core/deep/wire format.py"
    old = ["ls", "cd core", "ls", "cd 'deep'", "ls", "cat wire format.py"]
    tasks = [
        make_task("README.md", " \n"),
        make_task("gone.py"),
        make_task("README.md", root="elsewhere"),
        make_task("core"),
        make_task(f'"{wire}"', "Wire?", optimal_path=old),
        make_task("README.md", "Read?", optimal_path=["ls"]),
        make_task("core/hub.py", "Hub?", optimal_path=["cd core"]),
        make_task(wire, "Deep?", optimal_path=["cd core", "", "cd deep", "ls"]),
        make_task("core/hub.py", "Read and named?"),
    ]
    kept = filter_tasks(tasks, {"eventlib": repo})
    assert [(task.filename, task.optimal_path) for task in kept] == [
        (wire, optimal_path(wire)),
        ("README.md", ["id README.md"]),
        ("core/hub.py", ["cd core", "id hub.py"]),  # ends with id, whatever the last command was
        (wire, ["cd core", "cd deep", 'id "wire format.py"']),
        ("core/hub.py", optimal_path("core/hub.py")),
    ]


def test_repeated_tasks_are_merged_with_their_trajectories(repo: Repo, make_task: Any) -> None:
    def trajectory(info: Any, model: Any) -> Any:
        return {"model_name": model, "filename": None, "info": info, "trajectory": [{"reflection": "r", "cmd": "cd x"}]}

    tasks = [
        make_task("README.md", "Q", trajectories=[trajectory("positive", "a"), trajectory("negative0", "a")]),
        make_task("README.md", "other"),
        make_task(
            "README.md", "Q", trajectories=[trajectory("positive", "b"), trajectory("negative0", "b")], answer="2"
        ),
        make_task("README.md", "Q", trajectories=[trajectory("negative5", "c")]),
    ]
    merged, other = filter_tasks(tasks, {"eventlib": repo})
    assert (merged.question, merged.answer, other.question) == ("Q", "there", "other")
    assert [(t.info, t.model_name) for t in merged.trajectories] == [
        *[("positive", "a"), ("negative0", "a"), ("positive", "b"), ("negative1", "b"), ("negative2", "c")]
    ]
    assert tasks[0].trajectories[-1].model_name == "a"  # the input is unchanged
    (again,) = filter_tasks([tasks[3], tasks[3], tasks[0]], {"eventlib": repo})
    assert [t.info for t in again.trajectories] == ["negative5", "negative0", "positive", "negative1"]


def test_equal_questions_about_other_files_or_repositories_are_other_tasks(repo: Repo, make_task: Any) -> None:
    tasks = [make_task("README.md", "Q"), make_task("core/hub.py", "Q"), make_task("README.md", "Q", root="copy")]
    assert filter_tasks([*tasks, *tasks], {"eventlib": repo, "copy": repo}) == tasks


def test_split_is_seeded_disjoint_and_exact(make_task: Any) -> None:
    for n, sizes in ((10, (7, 2, 1)), (9, (6, 2, 1)), (1, (1, 0, 0)), (422, (295, 84, 43)), (0, (0, 0, 0))):
        tasks = [make_task("a.py", f"{i}?") for i in range(n)]
        split = split_tasks([*tasks, make_task("a.py", ""), make_task("a.py", " \n")], seed=3)
        assert tuple(map(len, split)) == sizes
        assert sorted(task.question for part in split for task in part) == sorted(task.question for task in tasks)
    tasks = [make_task("a.py", f"{i}?") for i in range(20)]
    assert split_tasks(tasks, 3) == split_tasks(tasks, 3)
    assert split_tasks(tasks, 3) != split_tasks(tasks, 4)
    assert split_tasks(tasks, 3).train != tasks[:14]


def test_levels_group_tasks_by_depth_and_contain_each_task_once(make_task: Any) -> None:
    tasks = [make_task("d/" * depth + f"{i}.py", trajectories=[]) for i in range(2) for depth in (3, 0, 4, 1, 6)]
    levels = depth_levels(tasks)
    assert [[task.depth for task in level] for level in levels] == [[0, 0], [1, 1], [3, 3], [4, 4, 6, 6]]
    assert sum(map(len, depth_levels(tasks))) == len(tasks)


def test_levels_can_be_merged(make_task: Any) -> None:
    def depths(kinds: Any, **options: Any) -> Any:
        tasks = [make_task("d/" * depth + "a.py") for depth in kinds]
        return [[task.depth for task in level] for level in depth_levels(tasks, **options)]

    assert depths([0, 1, 2, 3, 4], merge_first_two=True) == [[0, 1], [2], [3], [4]]
    assert depths([0, 1, 2, 3, 4], merge_after_first_k=1) == [[0], [1, 2, 3, 4]]
    assert depths([0, 1, 2], merge_first_two=True, merge_after_first_k=2) == [[0, 1], [2]]
    assert depths([1, 3], merge_first_two=True) == [[1, 3]]
    assert depths([2], merge_first_two=True) == [[2]]  # one bucket: nothing to merge
    assert depths([]) == []


def test_only_the_original_target_is_correct_unless_the_union_is_requested(make_task: Any) -> None:
    seen = [  # type: ignore[var-annotated]
        {"model_name": "m", "filename": name, "info": "negative0", "trajectory": []}
        for name in ("b.py", '"a a.py"', None)
    ]
    task = make_task("x.py", trajectories=seen)
    assert task.targets() == ("x.py",)
    assert task.targets(union=True) == ("x.py", "a a.py", "b.py")
    below = make_task('src/"my file.py"', trajectories=[])
    assert below.targets() == ("src/my file.py",)  # as the original writes it: the folder, then the quoted name


@pytest.mark.parametrize("name", ['"my file.md"', "'my file.md'", "\"'my file.md'\""])
def test_a_quoted_filename_is_the_bare_name_wherever_a_task_is_used(
    tmp_path: Path, make_folder: Callable[[str, dict[str, str]], Path], make_task: Any, name: str
) -> None:
    task = make_task("my file.md", root="r").model_copy(update={"filename": name})  # as in the original's files
    (tmp_path / "tasks.json").write_text(f"[{dump_line(task)}]")
    (read,) = read_tasks(tmp_path / "tasks.json")
    assert read == make_task(name, root="r", optimal_path=task.optimal_path, n_level=0)
    assert (read.filename, read.targets(), read.targets(union=True)) == ("my file.md", ("my file.md",), ("my file.md",))
    folder = make_folder("r", {"my file.md": "words of a file\n", "other.md": "words of another\n"})
    env = AutoExplore([read], {"r": Repo.open(folder)})
    env.reset(0)
    step = env.step('id "my file.md"')
    assert (step.done, step.info["success"]) == (True, True)


@pytest.mark.parametrize("folder", ['"q"', "'q'", "it's", "$x;y", "my dir"])
def test_a_task_in_a_folder_of_any_name_is_kept_and_can_be_solved(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any, folder: str
) -> None:
    """A folder whose real name is in quotes was once looked up without them, so its tasks were dropped."""
    repos = {"r": Repo.open(make_folder("r", {f"{folder}/a.py": "words of a file\n"}))}
    (task,) = filter_tasks([make_task(f"{folder}/a.py", root="r")], repos)
    assert task.optimal_path == optimal_path(f"{folder}/a.py")
    env = AutoExplore([task], repos)
    env.reset(0)
    steps = [env.step(command) for command in task.optimal_path]
    assert (steps[-1].done, steps[-1].info["success"]) == (True, True)


@pytest.mark.parametrize("name", ['"my dir"/a.py', "'my dir/a.py'", '"my dir"/"a.py"', "\"'my dir/a.py'\""])
def test_quotes_around_a_path_with_a_space_are_removed(make_task: Any, name: str) -> None:
    assert make_task(name, optimal_path=[]).filename == "my dir/a.py"


def test_a_task_without_a_question_is_dropped_not_refused(tmp_path: Path, repo: Repo, make_task: Any) -> None:
    row = json.loads(dump_line(make_task("core/hub.py")))
    without = {key: value for key, value in row.items() if key != "question"}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([without, row, without | {"question": None}]))
    assert filter_tasks(read_tasks(path), {"eventlib": repo}) == [make_task("core/hub.py")]
    assert sum(map(len, split_tasks(read_tasks(path), 0))) == 1


def test_a_folder_of_task_files_is_read_in_the_order_of_their_names(tmp_path: Path, make_task: Any) -> None:
    tasks = [make_task("core/hub.py"), make_task("README.md", root="other")]
    with pytest.raises(UserError, match=r"no \.json task file"):
        read_tasks(tmp_path)
    for name, task in zip(("b.json", "a.json"), tasks, strict=True):
        (tmp_path / name).write_text(f"[{dump_line(task)}]")
    assert read_tasks(tmp_path) == tasks[::-1]


def test_task_files_are_read_back_and_errors_are_located(tmp_path: Path, make_task: Any) -> None:
    path = tmp_path / "tasks.json"
    task = make_task("core/hub.py")
    row = json.loads(dump_line(task)) | {"copilot_cmds": ["x"], "reasons": []}  # columns the original's filter removes
    path.write_text(json.dumps([row]))
    assert read_tasks(path) == [task]
    for text, message in [
        ("[", "tasks.json is not JSON"),
        ("[]", "is an empty list; name a file with entries"),
        ("{}", "is not a list of JSON objects"),
        ("[1]", "item 0: an object was expected"),
        (json.dumps([row, row | {"question": 3}]), "item 1: field 'question': .* fix or delete the task"),
        (json.dumps([{"question": "?"}]), "item 0: field 'answer': Field required"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_tasks(path)
    with pytest.raises(UserError, match=r"missing\.json does not exist"):
        read_tasks(tmp_path / "missing.json")
