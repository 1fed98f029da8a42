"""``make use PROFILE=name``: one overlay over the default, comments kept. (Each under DVC: test_profile_graphs.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError
from selfimprove.pipeline.profiles import compose, merge, names
from selfimprove.pipeline.profiles import composed as merged
from selfimprove.pipeline.sections import spelled_out
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[2]
UNDER = """\
# All of it.
run: {seed: 1, threads: 2}   # for every stage
rise:
  engines:
    student: {engine: transformers, slots: 64}
    teacher: {engine: scripted, error_rate: 0.1}  # the expert
  rows:
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
    kept = [line for line in UNDER.splitlines() if "list" not in line and not line.startswith("run")]
    assert [line for line in text.splitlines() if line in kept] == kept  # their comments included
    assert "# for every stage" not in text  # it stood beside another value


def test_null_removes_an_entry_and_is_a_value_elsewhere(folder: Path) -> None:
    _, params = composed(folder, "run: {seed: null}\nrise: {rows: {one: null}}\n")
    assert params["rise"]["rows"] == {"two": {"match": "b"}}
    assert params["run"] == {"seed": None, "threads": 2}


def test_entries_may_be_removed_until_none_is_left(folder: Path) -> None:
    (folder / "default.yaml").write_text(UNDER.replace("rows:", "rows:   # to compare with"))
    text, params = composed(folder, "rise: {rows: {one: null, two: null}}\n")
    assert params["rise"]["rows"] == {}
    assert params["rise"]["list"] == [1, 2]
    assert "# the expert" in text
    assert "# to compare with" not in text


def test_a_launcher_of_another_kind_inherits_nothing(folder: Path) -> None:
    (folder / "default.yaml").write_text("train:\n  launcher: {kind: fork, processes: 2}\n")
    assert composed(folder, "train: {launcher: {kind: single}}")[1] == {"train": {"launcher": {"kind": "single"}}}
    assert composed(folder, "train: {launcher: {processes: 3}}")[1]["train"]["launcher"] == {
        "kind": "fork",
        "processes": 3,
    }


def test_a_profile_says_its_name_and_opens_with_its_own_comment(folder: Path) -> None:
    text, _ = composed(folder, "# Mine: for a try.\n# It takes a minute.\nrun: {seed: 2}\n")
    assert text.startswith("# All of it.\n# Profile mine.\n# Mine: for a try.\n# It takes a minute.\nrun:")


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_every_profile_is_written_as_it_is_merged_and_keeps_the_lines_that_it_does_not_change(name: str) -> None:
    default, text = (compose(one, ROOT / "profiles").splitlines() for one in ("default", name))
    params = merged(name, ROOT / "profiles")
    assert params == profile(name)  # as the other tests read it
    assert YAML(typ="safe", pure=True).load("\n".join(text)) == params
    assert YAML(typ="safe").load("\n".join(text)) == params  # libyaml, as DVC reads it
    if name != "default":
        kept = sum(line in set(text) for line in default)
        assert kept > len(default) / 3
        assert max(map(len, text)) <= max(map(len, default))


def test_null_is_written_as_null(folder: Path) -> None:
    assert "seed: null" in composed(folder, "run: {seed: null}\n")[0]


def test_make_use_keeps_edits_that_no_commit_has(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "default.yaml").rename(folder / "profiles/default.yaml")
    (folder / "profiles/mine.yaml").write_text("run: {seed: 5}\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]

    def use(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "selfimprove.pipeline.profiles", name]
        environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert use("mine").returncode == 0  # there was no params.yaml
    assert use("default").returncode == 0  # a profile's own text is no edit
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("seed: 1", "seed: 9"))
    refused = use("mine")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "holds edits of your own, which `make use` would overwrite; commit them" in refused.stderr
    assert "seed: 9" in params.read_text()
    for words in (["init", "--quiet"], ["add", "params.yaml"], ["commit", "--quiet", "-m", "mine"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    assert use("mine").returncode == 0


def test_an_engine_of_another_kind_replaces_the_old_one_whole(folder: Path) -> None:
    overlay = "rise: {engines: {teacher: {engine: openai, model: m}, student: {engine: transformers, slots: 8}}}"
    _, params = composed(folder, overlay)
    assert params["rise"]["engines"]["teacher"] == {"engine": "openai", "model": "m"}
    assert params["rise"]["engines"]["student"] == {"engine": "transformers", "slots": 8}


def test_laying_an_overlay_twice_changes_nothing_more() -> None:
    yaml = YAML()
    params, over = yaml.load(UNDER), yaml.load("rise: {rows: {two: {match: c}}, list: [9]}")
    merge(params, over)
    once = yaml.load(UNDER)
    merge(once, over)
    merge(once, over)
    assert once == params


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_no_profile_asks_a_curriculum_to_share_out_more_tasks_than_it_has_iterations(name: str) -> None:
    params = spelled_out(profile(name))["reflect_rl"]
    tasks = params["tasks"]["train"] or 1680  # null (gpt2-xl): .7 of at most 12 repositories x 100 files x 2 questions
    least = 3 if params["env"]["name"] == "taxi" else tasks  # taxi's three levels each have all tasks
    for run, settings in params["iterations"].items():
        assert not settings["rl"]["curriculum"] or settings["rl"]["max_steps"] >= least, run


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_a_rise_base_that_no_boost_has_taught_sees_an_example_of_the_box_that_graders_read(name: str) -> None:
    """Else a gain over such a base is one of format."""
    rise = spelled_out(profile(name))["rise"]
    assert rise["rows"]["base"]["train"]["epochs"] > 0 or rise["env"]["few_shot"]


def test_an_unknown_profile_names_the_nearest(folder: Path) -> None:
    with pytest.raises(UserError, match="no profile 'defualt'; did you mean 'default'"):
        compose("defualt", folder)
    assert names(folder) == ["default"]


def test_make_use_writes_params_yaml_whole_or_not_at_all(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "default.yaml").rename(folder / "profiles/default.yaml")
    (folder / "params.yaml").write_text(UNDER)

    def use(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "selfimprove.pipeline.profiles", name]
        return subprocess.run(
            command,
            cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )

    missing = use("nosuch")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (2, 1)
    assert (folder / "params.yaml").read_text() == UNDER
    done = use("default")
    assert done.returncode == 0, done.stderr
    assert YAML(typ="safe", pure=True).load(folder / "params.yaml") == YAML(typ="safe", pure=True).load(UNDER)
