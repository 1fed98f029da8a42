"""Git: its settings that must have no effect, and behaviour when it is not installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from selfimprove.apps.page.provenance import facts
from selfimprove.apps.page.run import Run
from selfimprove.core.git import ABSENT, git, has_repository, identity
from selfimprove.models.card import _commit
from selfimprove.pipeline import profiles, sweep
from tests.support.sentences import refused_with

ROOT = Path(__file__).resolve().parents[2]


def test_a_clone_has_the_committed_bytes_whatever_git_s_settings_for_line_ends_are(tmp_path: Path) -> None:
    (tmp_path / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    (tmp_path / "main.lock").write_bytes(b"one\ntwo\n")
    for words in (["init", "--quiet"], ["add", "--all"], ["checkout-index", "--all", "--prefix=clone/"]):
        subprocess.run(["git", "-c", "core.autocrlf=true", *words], cwd=tmp_path, check=True)
    assert (tmp_path / "clone/main.lock").read_bytes() == b"one\ntwo\n"


@pytest.fixture
def without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("run: {seed: 1}\n")
    return tmp_path


def test_code_that_only_reports_the_commit_works_without_git(without_git: Path) -> None:
    assert git("status") == (ABSENT, "")
    assert ("commit", "not a Git repository") in facts(Run(without_git))
    assert _commit() == "unknown"
    assert not profiles._committed(Path("params.yaml"))  # so a file that may have edits is not overwritten


def test_a_sweep_without_git_is_refused_in_one_sentence(without_git: Path) -> None:
    with refused_with(r"^git is not installed, and DVC experiments need it; install it"):
        sweep._state("spin")


def test_a_command_runs_in_the_named_folder(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert git("rev-parse", "--show-toplevel", folder=tmp_path) == (0, f"{tmp_path.resolve()}\n")


def test_a_repository_around_a_folder_is_found_without_git(without_git: Path) -> None:
    inner = without_git / "a/b"
    inner.mkdir(parents=True)
    (without_git / "beside/.git").mkdir(parents=True)
    assert not has_repository(inner)
    (without_git / ".git").mkdir()
    assert has_repository(inner)
    assert has_repository(without_git)


def test_the_author_of_commits_is_the_environment_s_and_otherwise_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        for key in ("NAME", "EMAIL"):
            monkeypatch.delenv(f"GIT_{role}_{key}", raising=False)
    subprocess.run(["git", "init", "--quiet"], check=True)
    with refused_with(r"^git has no user\.name, .*; run `git config --global user\.name …` first\.$"):
        identity()
    for key, value in (("name", "Configured"), ("email", "c@example.org")):
        subprocess.run(["git", "config", f"user.{key}", value], check=True)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Author")
    email = {f"GIT_{role}_EMAIL": "c@example.org" for role in ("AUTHOR", "COMMITTER")}
    assert identity() == {"GIT_AUTHOR_NAME": "Author", "GIT_COMMITTER_NAME": "Author", **email}
    monkeypatch.setenv("GIT_COMMITTER_NAME", "Committer")
    assert identity() == {"GIT_AUTHOR_NAME": "Committer", "GIT_COMMITTER_NAME": "Committer", **email}
