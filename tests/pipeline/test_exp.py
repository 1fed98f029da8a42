"""The SET option of `make exp`: which settings are refused, and what is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_text
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.exp import main, write_settings
from selfimprove.pipeline.layout import rewritten
from selfimprove.pipeline.profiles import compose
from tests.support.repo_copy import ROOT, run
from tests.support.sentences import refused_with


@pytest.fixture(autouse=True)
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "params.yaml"
    file.write_text(compose("default", ROOT / "profiles"))
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x", "--allow-empty")
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rise.rows.iter2.train.lr=abc", "rise.rows.iter2.train.lr: input should be a valid number, got 'abc'"),
        ("rise.rows.iter2.trian.lr=1e-3", "rise.rows.iter2.trian: unknown key; did you mean 'train'?"),
        ("rize.tasks.train=5", "unknown section 'rize'; did you mean 'rise'?"),
        ("typo", "SET: 'typo' is not key=value"),
        ("run.seed=range(1,3)", "SET: 'run.seed=range(1,3)' is not key=value with a single value"),
        ("run.seed=" + "1" * 5000, "SET: 'run.seed=1111"),
        ("run.kernels=${oc.env:HOME}", "SET: ${…} is not a value"),
        ("run" + ".seed" * 3000 + "=1", "is not key=value with a single value"),
        ("run.seed=18,19", "SET: 'run.seed=18,19' is not key=value with a single value"),
        ("run.seed=18 run.seed=19", "SET: run.seed occurs twice; give it one value"),
        ("run.max_blocked=0.1", "SET: params.yaml does not contain the key of 'run.max_blocked=0.1'; write +run"),
        ("+run.seed=18", "SET: params.yaml already contains the key of '+run.seed=18'; write it without the +."),
    ],
)
def test_an_invalid_setting_is_refused_and_params_yaml_is_unchanged(params: Path, text: str, said: str) -> None:
    before = params.read_bytes()
    with pytest.raises(UserError) as caught:
        write_settings(f"run.threads=1 {text}")
    assert said in str(caught.value)
    assert params.read_bytes() == before


def test_without_a_name_for_the_author_of_commits_nothing_starts(
    params: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC would fail when it saves the experiment, after all stages have run."""
    before = params.read_bytes()
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{role}_EMAIL")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with refused_with(r"git has no user\.email, .*; run `git config --global user\.email …` first"):
        write_settings("run.seed=18")
    assert params.read_bytes() == before
    run(tmp_path, "git", "config", "user.email", "t@example.org")
    write_settings("run.seed=18")


def test_params_with_an_alias_are_refused_and_unchanged(params: Path) -> None:
    """Changing the key of one place would change the other, too, or remove the anchor that it names."""
    text = params.read_text()
    for old, new in (("  seed: 17", "  seed: &s 17"), ("    seed: 42", "    seed: *s")):
        assert text.count(f"\n{old}\n") + text.count(f"\n{old} ") >= 1
        text = text.replace(f"\n{old}", f"\n{new}", 1)
    params.write_text(text)
    with pytest.raises(UserError, match=r"params\.yaml, line \d+: the alias \*s stands for a value elsewhere"):
        write_settings("run.seed=18")
    assert params.read_text() == text


def test_a_tab_after_a_value_is_reported_by_its_line(params: Path) -> None:
    """libyaml, and so `make check`, accepts it, but the parser that DVC and we change params with does not."""
    text = params.read_text().replace("  seed: 17", "  seed: 17\t", 1)
    params.write_text(text)
    with pytest.raises(UserError, match=r"params\.yaml, line 4: not YAML \(found character '\\t' that cannot start"):
        write_settings("run.seed=18")
    with pytest.raises(UserError, match=r"params\.yaml, line 4: not YAML"):
        rewritten(text, read_yaml(params))
    assert params.read_text() == text


def test_params_whose_lines_cannot_be_told_apart_are_unchanged(params: Path) -> None:
    text = params.read_text().replace("\nrun:\n", "\n# a \u2028 # b\nrun:\n", 1)
    params.write_text(text)
    with pytest.raises(UserError, match="can't be changed one by one"):
        write_settings("run.seed=18")
    assert params.read_text() == text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("run.seed=18 rise.rows.iter2.train.lr=5e-4", 4),
        ("+run.max_blocked=0.1", 1),
        ("~run.threads", 1),
        ("rise.tasks.difficulty.factor=[2,12]", 0),
    ],
)
def test_valid_settings_are_written_and_the_other_lines_are_unchanged(params: Path, text: str, lines: int) -> None:
    before = params.read_text().splitlines()
    write_settings(text)
    assert len(set(params.read_text().splitlines()) ^ set(before)) == lines


def test_numeric_keys_stay_numbers(params: Path) -> None:
    write_settings("rise.tasks.difficulty.term=[2,99]")
    assert read_yaml(params)["rise"]["tasks"]["difficulty"]["steps"] == {3: 1.0, 4: 1.0}


def test_without_a_git_commit_nothing_is_written(params: Path) -> None:
    shutil.rmtree(params.parent / ".git")
    before = params.read_bytes()
    with pytest.raises(UserError, match="not a git repository, and DVC needs one; clone it, or run `git init"):
        write_settings("run.seed=18")
    run(params.parent, "git", "init", "--quiet")
    with pytest.raises(UserError, match="no commit yet, and DVC experiments need one; run `git commit` first"):
        write_settings("run.seed=18")
    assert params.read_bytes() == before


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("base.spin.chat_template=my.jinja", "base.spin.chat_template: 'my.jinja' is neither"),
        ("spin.tools.use.search=serpapi", "spin: tools: the search key SERPAPI_API_KEY is not set"),
    ],
)
def test_what_the_new_params_need_is_checked_before_anything_is_written(
    params: Path, setting: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (params.parent / "models").symlink_to(ROOT / "models")
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    before = params.read_bytes()
    monkeypatch.setattr("sys.argv", ["exp", setting, "spin"])
    with pytest.raises(SystemExit, match="2"):
        main()
    err = capsys.readouterr().err
    assert said in err
    assert "params.yaml was not changed." in err
    assert params.read_bytes() == before


def test_a_setting_may_repair_params_that_could_not_run(params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (params.parent / "models").symlink_to(ROOT / "models")
    write_text(params, params.read_text().replace("model: models/pretrained", "model: models/nope", 1))
    assert read_yaml(params)["base"]["rise"]["model"] == "models/nope"
    monkeypatch.setattr("sys.argv", ["exp", "base.rise.model=models/pretrained", "rise"])
    main()


def test_a_folder_that_git_refuses_is_not_said_to_have_no_commit(params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(params.parent / "none"))
    remedy = r"run `git config --global --add safe\.directory .*`\.$"
    with refused_with(rf"^git refuses this folder \(fatal: detected dubious ownership .*; {remedy}"):
        write_settings("run.seed=18")
