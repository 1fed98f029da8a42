"""DVC with our shortcuts writes the bytes and reads the values that DVC alone does."""

import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.dependency.param import read_param_file as by_dvc
from dvc.fs import LocalFileSystem
from dvc.utils.serialize import dumps_yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from selfimprove.pipeline.dvc_command import HEADER, read_param_file, with_stages
from tests.support.repo_copy import ROOT, run

OURS = (sys.executable, "-m", "selfimprove.pipeline.dvc_command")
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,6}(@[a-z0-9_]{1,6})?", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=100),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
STAGES = st.dictionaries(NAMES, st.fixed_dictionaries({"cmd": st.text(min_size=1), "params": VALUES}), max_size=4)


@pytest.mark.slow
@given(STAGES, STAGES)
def test_a_recorded_stage_gives_the_dvc_lock_that_dvc_would_write(old: dict[str, Any], new: dict[str, Any]) -> None:
    text = HEADER
    for name, data in old.items():
        text = with_stages(text, {name: data}) or ""
    assert not old or text == dumps_yaml({"schema": "2.0", "stages": old})
    whole = {**old, **new}
    assert not whole or with_stages(text, new) == dumps_yaml({"schema": "2.0", "stages": whole})


@pytest.mark.parametrize(
    "text",
    [
        "schema: '2.0'\ndatasets: []\nstages:\n  one:\n    cmd: a\n",
        "# A comment.\nschema: '2.0'\nstages:\n  one:\n    cmd: a\n",
        "schema: '2.0'\nstages:\n  one: {cmd: a}\ndatasets: []\n",
        "schema: '2.0'\nstages:\n  one:\n    cmd: a\n  one:\n    cmd: b\n",
        "schema: '2.0'\nstages:\n  one:\n    cmd",
        "schema: '2.0'\nstages:\n  one: {cmd: a}\n",
        "schema: '2.0'\nstages: {}\n",
        "",
    ],
)
def test_a_dvc_lock_in_another_form_is_left_to_dvc(text: str) -> None:
    assert with_stages(text, {"one": {"cmd": "c"}}) is None


def test_a_value_that_occurs_twice_and_so_gets_an_anchor_is_left_to_dvc() -> None:
    """Anchors are numbered in the whole file; two stages with the same number would make it unreadable."""
    value = {"b": 1}
    twice = {"cmd": "a", "params": [value, value]}
    assert "&id001" in dumps_yaml(twice)
    assert with_stages(HEADER, {"one": twice}) is None
    text = dumps_yaml({"schema": "2.0", "stages": {"one": twice}})
    assert with_stages(text, {"two": {"cmd": "a"}}) is None


def test_the_committed_dvc_lock_can_be_written_stage_by_stage() -> None:
    text = (ROOT / "dvc.lock").read_text()
    stages = YAML(typ="safe").load(text)["stages"]
    assert with_stages(text, {"rise-data": stages["rise-data"]}) == text
    assert with_stages(text, {"rise-data": {"cmd": "other"}}) not in (None, text)


def pipeline(folder: Path) -> Path:
    """Three stages, two of which read params."""
    folder.mkdir()
    run(folder, "git", "init", "--quiet")
    run(folder, "dvc", "init", "--quiet")
    (folder / "params.yaml").write_text(
        "a: {b: 1.5e-3, c: &x [1, null, x y], d: {3: 1.0}, f: *x}\ne: true\ng: {h: *x}\n"
    )
    stages = {
        "first": {"cmd": "echo 1 > one", "params": ["a.b", "e"], "outs": ["one"]},
        "twice": {"cmd": "echo 1 > again", "params": ["a.c", "g"], "outs": ["again"]},
        "second": {"cmd": "cat one one > two", "deps": ["one"], "params": ["a"], "outs": ["two"]},
        "third": {"cmd": "cat two > three", "deps": ["two"], "outs": ["three"]},
    }
    YAML().dump({"stages": stages}, folder / "dvc.yaml")
    return folder


@pytest.mark.slow
def test_runs_with_and_without_the_shortcuts_record_the_same_bytes_and_understand_each_other(tmp_path: Path) -> None:
    ours, theirs = pipeline(tmp_path / "ours"), pipeline(tmp_path / "theirs")
    for value in ("1.5e-3", "2"):
        for folder, dvc in ((ours, OURS), (theirs, ("dvc",))):
            path = folder / "params.yaml"
            path.write_text(path.read_text().replace("1.5e-3", value))
            run(folder, *dvc, "repro", PYTHONPATH=str(ROOT))
        assert (ours / "dvc.lock").read_bytes() == (theirs / "dvc.lock").read_bytes()
        assert "Running stage" not in run(ours, "dvc", "repro").stdout
        assert "Running stage" not in run(theirs, *OURS, "repro", PYTHONPATH=str(ROOT)).stdout
    (ours / "dvc.lock").unlink()
    run(ours, *OURS, "repro", "first", PYTHONPATH=str(ROOT))  # from DVC's cache of runs
    assert set(YAML(typ="safe").load(ours / "dvc.lock")["stages"]) == {"first"}


@pytest.mark.parametrize("names", [["a.b"], ["a", "e"], ["a.c", "a.d"], ["a.none"], ["a.d*"], ["a.c.0"], [], None])
@pytest.mark.parametrize("flatten", [True, False])
def test_params_have_the_values_that_dvc_reads(tmp_path: Path, names: list[str] | None, flatten: bool) -> None:
    path = tmp_path / "params.yaml"
    for value in (1, 2):  # the file may change while DVC runs
        path.write_text(f"a: {{b: {value}, c: [1, null], d: {{3: 1.0}}, f.g: 1}}\ne: true\n")
        read = [one(LocalFileSystem(), str(path), names, flatten) for one in (read_param_file, by_dvc)]
        assert read[0] == read[1]


def test_changing_a_value_that_was_read_changes_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a: {b: [1]}\n")
    read_param_file(LocalFileSystem(), str(path), ["a"], True)["a"]["b"].append(2)
    assert read_param_file(LocalFileSystem(), str(path), ["a"], True) == {"a": {"b": [1]}}


def test_a_folder_of_the_run_cache_that_a_killed_run_left_empty_does_not_end_the_next_runs(tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, *OURS, "init", "--quiet", PYTHONPATH=str(ROOT))
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: cp input out, deps: [input], outs: [out]}}\n")
    (tmp_path / "input").write_text("an input\n")
    run(tmp_path, *OURS, "repro", "--quiet", PYTHONPATH=str(ROOT))
    (entry,) = (tmp_path / ".dvc/cache/runs").glob("*/*/*")
    entry.unlink()
    (tmp_path / "dvc.lock").unlink()
    run(tmp_path, *OURS, "repro", "--quiet", PYTHONPATH=str(ROOT))
    assert entry.is_file()
