"""Git: its settings that must have no effect, and behaviour when it is not installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from selfimprove.apps.page.provenance import facts
from selfimprove.apps.page.run import Run
from selfimprove.core.git import ABSENT, git
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
