"""``make use PROFILE=name``: merges an overlay into the default and keeps comments. (With DVC: test_profile_graphs.)"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from selfimprove.core.errors import UserError
from selfimprove.core.overlay import merge
from selfimprove.pipeline import profiles
from selfimprove.pipeline.profiles import compose, names
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


def test_mappings_are_merged_key_by_key_and_other_values_are_replaced(folder: Path) -> None:
    text, params = composed(folder, "run: {threads: 8}\nrise: {list: [3], new: {a: 1}}\n")
    assert params["run"] == {"seed": 1, "threads": 8}
    assert (params["rise"]["list"], params["rise"]["new"]) == ([3], {"a": 1})
    assert params["rise"]["engines"] == YAML(typ="safe", pure=True).load(UNDER)["rise"]["engines"]
    kept = [line for line in UNDER.splitlines() if "list" not in line and not line.startswith("run")]
    assert [line for line in text.splitlines() if line in kept] == kept  # including their comments
    assert "# for every stage" not in text  # it belonged to the replaced value


def test_null_removes_an_entry_of_rows_and_is_an_ordinary_value_elsewhere(folder: Path) -> None:
    _, params = composed(folder, "run: {seed: null}\nrise: {rows: {one: null}}\n")
    assert params["rise"]["rows"] == {"two": {"match": "b"}}
    assert params["run"] == {"seed": None, "threads": 2}


def test_all_entries_of_a_mapping_can_be_removed(folder: Path) -> None:
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


def test_the_written_header_contains_the_profile_s_name_and_opening_comment(folder: Path) -> None:
    text, _ = composed(folder, "# Mine: for a try.\n# It takes a minute.\nrun: {seed: 2}\n")
    assert text.startswith("# All of it.\n# Profile mine.\n# Mine: for a try.\n# It takes a minute.\nrun:")


def unchanged(
    lines: Sequence[str], node: CommentedMap, wanted: Mapping[str, Any], start: int, end: int
) -> Iterator[str]:
    """Lines [start, end), which are the block mapping ``node``, without entries that have another value in ``wanted``.

    A comment between two entries is not part of an entry.
    """
    firsts = [node.lc.key(key)[0] for key in node]
    yield from lines[start : firsts[0]]
    for key, first, after in zip(node, firsts, [*firsts[1:], end], strict=True):
        old, new = node[key], wanted.get(key)
        if key in wanted and old == new:
            yield from lines[first:after]
        elif isinstance(old, CommentedMap) and not old.fa.flow_style() and isinstance(new, Mapping) and new:
            yield lines[first]
            yield from unchanged(lines, old, new, first + 1, after)
        else:
            between = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), reversed(lines[first + 1 : after]))
            yield from reversed([*between])


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_every_profile_is_written_with_its_merged_values_and_keeps_all_lines_that_it_does_not_change(name: str) -> None:
    default, text = (compose(one, ROOT / "profiles") for one in ("default", name))
    params = merged(name, ROOT / "profiles")
    assert params == profile(name)  # as other tests load it
    assert YAML(typ="safe", pure=True).load(text) == params
    assert YAML(typ="safe").load(text) == params  # libyaml, as DVC reads it
    lines, written = default.splitlines(), iter(text.splitlines())
    for line in unchanged(lines, YAML().load(default), params, 0, len(lines)):
        assert line in written, "the line is lost or in another place"  # `in` moves on to the line after it
    assert max(map(len, text.splitlines())) <= max(map(len, lines))


def test_null_is_written_as_null(folder: Path) -> None:
    assert "seed: null" in composed(folder, "run: {seed: null}\n")[0]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A folder with the real default profile."""
    (tmp_path / "profiles").mkdir()
    shutil.copy(ROOT / "profiles/default.yaml", tmp_path / "profiles")
    return tmp_path


def use(repo: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "selfimprove.pipeline.profiles", name]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False)


def test_make_use_refuses_to_overwrite_uncommitted_edits(repo: Path) -> None:
    (repo / "profiles/mine.yaml").write_text("run: {seed: 5}\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    assert use(repo, "mine").returncode == 0  # there was no params.yaml
    (repo / ".scratch/use").write_bytes(b"\xff\xfe")  # damaged
    assert use(repo, "default").returncode == 0  # the unchanged text of a profile is not an edit
    params = repo / "params.yaml"
    params.write_text(params.read_text().replace("seed: 17", "seed: 9", 1))
    refused = use(repo, "mine")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "has uncommitted edits, which `make use` would overwrite; commit them" in refused.stderr
    assert "seed: 9" in params.read_text()
    for words in (["init", "--quiet"], ["add", "params.yaml"], ["commit", "--quiet", "-m", "mine"]):
        subprocess.run([*git, *words], cwd=repo, check=True)
    assert use(repo, "mine").returncode == 0


def test_make_use_refuses_to_change_the_params_of_a_run(repo: Path) -> None:
    turn = repo / ".scratch/locks/repro"
    turn.parent.mkdir(parents=True)
    with turn.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = use(repo, "default")
    assert refused.returncode == 2
    assert "a run is active in this folder and reads params.yaml; wait for it to end, or stop it" in refused.stderr
    assert not (repo / "params.yaml").exists()
    assert use(repo, "default").returncode == 0


def test_make_use_can_be_repeated_after_the_profile_was_edited(repo: Path) -> None:
    for seed in (5, 6):
        (repo / "profiles/mine.yaml").write_text(f"run: {{seed: {seed}}}\n")
        done = use(repo, "mine")
        assert done.returncode == 0, done.stderr
        assert f"seed: {seed}" in (repo / "params.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"run: {seed: 1\n", "profiles/mine.yaml, line 2: not YAML"),
        (b"", "profiles/mine.yaml: a mapping was expected"),
        (b"- run\n", "profiles/mine.yaml: a mapping was expected"),
        (b"run: {seed: 1}\nrun: {seed: 2}\n", 'profiles/mine.yaml, line 2: not YAML (found duplicate key "run"'),
        (b"run: {seed: 1} # \xe9\n", "profiles/mine.yaml: not YAML"),
        (b"rize: {seed: 1}\n", "profiles/mine.yaml: unknown section 'rize'; did you mean 'rise'?"),
        (b"run: {sed: 1}\n", "profiles/mine.yaml: run.sed: unknown key; did you mean 'seed'?"),
    ],
)
def test_a_malformed_profile_gives_a_one_line_error_and_nothing_is_written(repo: Path, text: bytes, said: str) -> None:
    (repo / "profiles/mine.yaml").write_bytes(text)
    refused = use(repo, "mine")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert refused.stderr.startswith(said)
    assert not (repo / "params.yaml").exists()


@pytest.mark.parametrize("name", ["../params", "x'y", "", "default.yaml", "./default"])
def test_make_use_accepts_only_names_of_files_in_the_profiles_folder(repo: Path, name: str) -> None:
    assert use(repo, "default").returncode == 0
    refused = use(repo, name)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert f"no profile {name!r}" in refused.stderr


def test_an_engine_of_another_kind_inherits_nothing(folder: Path) -> None:
    overlay = "rise: {engines: {teacher: {engine: openai, model: m}, student: {engine: transformers, slots: 8}}}"
    _, params = composed(folder, overlay)
    assert params["rise"]["engines"]["teacher"] == {"engine": "openai", "model": "m"}
    assert params["rise"]["engines"]["student"] == {"engine": "transformers", "slots": 8}


def test_merging_an_overlay_twice_gives_the_same_params_as_once() -> None:
    yaml = YAML()
    params, over = yaml.load(UNDER), yaml.load("rise: {rows: {two: {match: c}}, list: [9]}")
    merge(params, over)
    once = yaml.load(UNDER)
    merge(once, over)
    merge(once, over)
    assert once == params


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_no_profile_has_a_curriculum_with_more_tasks_than_rl_iterations(name: str) -> None:
    params = spelled_out(profile(name))["reflect_rl"]
    tasks = params["tasks"]["train"] or 1680  # null (gpt2-xl): .7 of at most 12 repositories x 100 files x 2 questions
    least = 3 if params["env"]["name"] == "taxi" else tasks  # each of taxi's three levels has all tasks
    for run, settings in params["iterations"].items():
        assert not settings["rl"]["curriculum"] or settings["rl"]["max_steps"] >= least, run


@pytest.mark.parametrize("name", names(ROOT / "profiles"))
def test_a_rise_base_without_sft_is_shown_an_example_of_the_boxed_answer_format(name: str) -> None:
    """Otherwise, a gain over such a base could be due to the format alone."""
    rise = spelled_out(profile(name))["rise"]
    assert rise["rows"]["base"]["train"]["epochs"] > 0 or rise["env"]["few_shot"]


def test_an_unknown_profile_is_refused_with_the_nearest_name(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no profile 'defualt' in .*; did you mean 'default'"):
        compose("defualt", folder)
    assert names(folder) == ["default"]


@pytest.mark.parametrize(
    ("error", "code"), [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2), (KeyboardInterrupt(), 130)]
)
@pytest.mark.parametrize(("owner", "step"), [(Path, "write_text"), (os, "fsync"), (os, "replace")])
def test_make_use_leaves_params_yaml_as_it_was_if_writing_fails_or_is_interrupted(
    repo: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, error: BaseException, code: int
) -> None:
    before = (repo / "profiles/default.yaml").read_bytes()
    (repo / "params.yaml").write_bytes(before)
    (repo / "profiles/mine.yaml").write_text("run: {seed: 5}\n")
    monkeypatch.chdir(repo)
    monkeypatch.setattr("sys.argv", ["profiles", "mine"])
    files = sorted(repo.iterdir())

    def fail(path: Any, text: Any = None, **_: object) -> None:
        if step == "write_text":
            Path(path).write_bytes(text[: len(text) // 2].encode())
        assert sorted(repo.iterdir()) != files  # the new text is in a temporary file
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        with pytest.raises(SystemExit) as ended:
            profiles.main()
    assert ended.value.code == code
    assert (repo / "params.yaml").read_bytes() == before
    assert sorted(repo.iterdir()) == files
    profiles.main()
    assert "seed: 5" in (repo / "params.yaml").read_text()


def test_make_use_says_whether_params_yaml_contained_the_profile_before(repo: Path) -> None:
    (repo / "profiles/mine.yaml").write_text("run: {seed: 5}\n")
    for shows in ("`git diff params.yaml` shows the changes", "it did before, too"):
        assert use(repo, "mine").stdout == f"params.yaml now contains profile mine; {shows}.\n"
