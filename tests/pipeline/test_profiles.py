"""``make use PROFILE=name``: one overlay over the default, comments kept. (Each under DVC: test_end_to_end.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from selfimprove.errors import UserError
from selfimprove.pipeline.profiles import compose, merge, names

ROOT = Path(__file__).resolve().parents[2]
UNDER = """\
# All of it.
run: {seed: 1, threads: 2}   # for every stage
rise:
  engines:
    student: {engine: transformers, slots: 64}
    teacher: {engine: scripted, error_rate: 0.1}  # the expert
  controls:
    one: {match: a}
    two: {match: b}
  list: [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "default.yaml").write_text(UNDER)
    return tmp_path


def composed(folder: Path, overlay: str) -> tuple[str, dict]:
    (folder / "mine.yaml").write_text(overlay)
    text = compose("mine", folder)
    return text, YAML(typ="safe", pure=True).load(text)


def test_mappings_merge_key_by_key_and_the_rest_is_replaced(folder: Path) -> None:
    text, params = composed(folder, "run: {threads: 8}\nrise: {list: [3], new: {a: 1}}\n")
    assert params["run"] == {"seed": 1, "threads": 8}
    assert (params["rise"]["list"], params["rise"]["new"]) == ([3], {"a": 1})
    assert params["rise"]["engines"] == YAML(typ="safe", pure=True).load(UNDER)["rise"]["engines"]
    for comment in ("# All of it.", "# for every stage", "# the expert"):
        assert comment in text


def test_null_removes_an_entry_and_is_a_value_elsewhere(folder: Path) -> None:
    _, params = composed(folder, "run: {seed: null}\nrise: {controls: {one: null}}\n")
    assert params["rise"]["controls"] == {"two": {"match": "b"}}
    assert params["run"] == {"seed": None, "threads": 2}


def test_entries_may_be_removed_until_none_is_left(folder: Path) -> None:
    (folder / "default.yaml").write_text(UNDER.replace("controls:", "controls:   # to compare with"))
    text, params = composed(folder, "rise: {controls: {one: null, two: null}}\n")
    assert params["rise"]["controls"] == {}
    assert params["rise"]["list"] == [1, 2]
    assert "# the expert" in text


def test_an_engine_of_another_kind_replaces_the_old_one_whole(folder: Path) -> None:
    overlay = "rise: {engines: {teacher: {engine: openai, model: m}, student: {engine: transformers, slots: 8}}}"
    _, params = composed(folder, overlay)
    assert params["rise"]["engines"]["teacher"] == {"engine": "openai", "model": "m"}
    assert params["rise"]["engines"]["student"] == {"engine": "transformers", "slots": 8}


def test_laying_an_overlay_twice_changes_nothing_more() -> None:
    yaml = YAML()
    params, over = yaml.load(UNDER), yaml.load("rise: {controls: {two: {match: c}}, list: [9]}")
    merge(params, over)
    once = yaml.load(UNDER)
    merge(once, over)
    merge(once, over)
    assert once == params


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_reflect_rl_25_no_profile_asks_a_curriculum_to_share_out_more_tasks_than_it_has_iterations(name: str) -> None:
    params = YAML(typ="safe", pure=True).load(compose(name, ROOT / "profiles"))["reflect_rl"]
    tasks = params["tasks"]["train"] or 1680  # null (gpt2-xl): .7 of at most 12 repositories x 100 files x 2 questions
    least = 3 if params["env"]["name"] == "taxi" else tasks  # taxi's three levels each have all tasks
    for run, settings in params["iterations"].items():
        assert not settings["rl"]["curriculum"] or settings["rl"]["max_steps"] >= least, run


def test_an_unknown_profile_names_the_nearest(folder: Path) -> None:
    with pytest.raises(UserError, match="no profile 'defualt'; did you mean 'default'"):
        compose("defualt", folder)
    assert names(folder) == ["default"]


def test_make_use_writes_params_yaml_whole_or_not_at_all(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "default.yaml").rename(folder / "profiles/default.yaml")
    (folder / "params.yaml").write_text("mine\n")

    def use(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "selfimprove.pipeline.profiles", name]
        return subprocess.run(
            command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
        )

    missing = use("nosuch")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (2, 1)
    assert (folder / "params.yaml").read_text() == "mine\n"
    done = use("default")
    assert done.returncode == 0, done.stderr
    assert YAML(typ="safe", pure=True).load(folder / "params.yaml") == YAML(typ="safe", pure=True).load(UNDER)
