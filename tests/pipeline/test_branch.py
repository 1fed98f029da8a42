"""git's branch after a killed experiment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from selfimprove.pipeline.branch import back_on_branch, keep_branch
from tests.support.repo_copy import ROOT, environment

FILE = Path("file.txt")


def git(*words: str) -> str:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *author, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FILE.write_text("start\n")
    git("init", "--quiet", "--initial-branch", "work")
    git("add", FILE.name)
    git("commit", "--quiet", "-m", "start")


@pytest.mark.usefixtures("committed")
def test_after_a_killed_experiment_git_is_back_on_its_branch_and_files_are_kept() -> None:
    keep_branch()
    git("checkout", "--quiet", "--detach")
    FILE.write_text("start\n# more\n")
    git("add", FILE.name)
    assert list(back_on_branch()) == [
        "a killed experiment left git with a detached HEAD; switched back to branch work."
    ]
    assert git("symbolic-ref", "HEAD") == "refs/heads/work"
    assert FILE.read_text().endswith("# more\n")
    assert git("diff", "--cached", "--name-only") == ""
    assert list(back_on_branch()) == []


@pytest.mark.usefixtures("committed")
def test_commits_on_a_detached_head_are_left_there_with_a_message_on_how_to_keep_them() -> None:
    keep_branch()
    git("checkout", "--quiet", "--detach")
    git("commit", "--quiet", "--allow-empty", "-m", "mine")
    [said] = back_on_branch()
    assert "`git branch NAME` keeps them, and `git switch work` goes back" in said
    assert git("log", "-1", "--format=%s") == "mine"


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("begins", ["on a branch", "on none"])
def test_a_branch_or_detached_head_chosen_by_the_user_is_left_unchanged(begins: str) -> None:
    if begins == "on none":
        git("checkout", "--quiet", "--detach")
    keep_branch()
    if begins == "on a branch":
        git("checkout", "--quiet", "-b", "other")
    before = git("rev-parse", "--abbrev-ref", "HEAD")
    assert list(back_on_branch()) == []
    assert git("rev-parse", "--abbrev-ref", "HEAD") == before


@pytest.mark.slow
@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_command_repairs_the_detached_head_of_an_experiment_killed_with_its_group(way: signal.Signals) -> None:
    Path("params.yaml").write_text("run: {seed: 1}\n")
    stage = "echo at work >&2; sleep 60"
    Path("dvc.yaml").write_text(f"stages: {{a: {{cmd: '{stage}', params: [run.seed]}}}}\n")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet", "--force"], check=True)
    git("add", "--all")
    git("commit", "--quiet", "-m", "a stage")
    command = [sys.executable, "-m", "selfimprove.pipeline.warm", "dvc"]
    environ = {**environment(), "PYTHONPATH": str(ROOT), "ACCELERATOR": "cuda"}  # no helper that imports torch
    with subprocess.Popen(
        [*command, "exp", "run"], env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stderr is not None
        said = ""
        while "at work" not in said:
            said = run.stderr.readline()
        assert git("rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
        os.killpg(run.pid, way)
    subprocess.run([*command, "status", "--quiet"], env=environ, check=False)
    assert git("symbolic-ref", "HEAD") == "refs/heads/work"
