"""``make verify`` with real DVC: damage that DVC considers up to date is reported, with how to restore the file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from selfimprove.pipeline.stage import content_digest
from tests.support.repo_copy import ROOT

STAGES = """
stages:
  make: {cmd: "mkdir f && echo one > f/a && echo two > f/b && echo 1 > m.json", outs: [f], metrics: [m.json: {cache: false}]}
"""  # noqa: E501
TWO = hashlib.md5(b"two\n").hexdigest()
NOT_RUN = f"""
  rise-report:
    outs:
    - {{path: results/headline/rise.json, md5: {hashlib.md5(b"1").hexdigest()}}}
    - {{path: results/summary/rise.json, md5: '{"0" * 32}'}}
    - {{path: results/summary/rise.csv, md5: {TWO}}}
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "dvc.yaml").write_text(STAGES)
    dvc(tmp_path, "init", "--quiet", "--no-scm")
    dvc(tmp_path, "config", "cache.type", "copy")
    dvc(tmp_path, "repro", "--quiet")
    return tmp_path


def dvc(folder: Path, *command: str) -> str:
    quiet = {**os.environ, "DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(["dvc", *command], cwd=folder, env=quiet, check=True, capture_output=True, text=True).stdout


def verify(folder: Path) -> tuple[int, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-m", "selfimprove.pipeline.verify"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, (ran.stderr if ran.returncode else ran.stdout).splitlines()


def cached(folder: Path, content: str) -> Path:
    (file,) = (f for f in folder.glob(".dvc/cache/files/md5/??/*") if f.read_text() == content)
    return file


def test_intact_outputs_are_confirmed_and_damaged_ones_are_reported_with_a_remedy(repo: Path) -> None:
    assert verify(repo) == (0, ["3 files and DVC's cache match dvc.lock."])
    (repo / "f/a").write_text("One\n")
    (repo / "f/b").unlink()
    assert verify(repo) == (
        2,
        [
            "f/a does not match dvc.lock; `dvc checkout --force make` restores it.",
            "f/b is missing; `dvc checkout --force make` restores it.",
        ],
    )
    dvc(repo, "checkout", "--force", "make")
    assert verify(repo)[0] == 0
    (repo / "m.json").write_text("2\n")
    assert verify(repo) == (2, ["m.json does not match dvc.lock; delete it, then run `dvc repro make`."])


def test_what_the_finder_of_macos_adds_to_an_output_changes_nothing(repo: Path) -> None:
    shutil.copy2(ROOT / ".dvcignore", repo)
    assert dvc(repo, "status") == "Data and pipelines are up to date.\n"
    before = content_digest(repo / "f")
    (repo / "f/.DS_Store").write_bytes(b"\0\0\0\1Bud1")
    assert dvc(repo, "status") == "Data and pipelines are up to date.\n"
    assert content_digest(repo / "f") == before
    assert verify(repo) == (0, ["3 files and DVC's cache match dvc.lock."])


def test_a_file_that_does_not_belong_to_an_output_folder_is_reported_and_the_suggested_command_deletes_it(
    repo: Path,
) -> None:
    (repo / "f/c").write_text("three\n")
    assert verify(repo) == (
        2,
        ["f/c is not in dvc.lock; move it away or run `dvc checkout --force make`, which deletes it."],
    )
    dvc(repo, "checkout", "--force", "make")
    assert verify(repo)[0] == 0


@pytest.mark.slow
def test_a_damaged_cache_file_that_dvc_checks_out_as_up_to_date_is_reported_and_the_suggested_steps_repair_it(
    repo: Path,
) -> None:
    file = cached(repo, "two\n")
    file.chmod(0o644)
    file.write_text("TWO\n")
    file.chmod(0o444)  # as DVC left it
    (repo / "f/b").unlink()
    dvc(repo, "checkout")
    assert (repo / "f/b").read_text() == "TWO\n"
    assert dvc(repo, "status") == "Data and pipelines are up to date.\n"
    code, (said,) = verify(repo)
    where = file.relative_to(repo)
    assert code == 2
    assert said == (f"{where} (of f/b) is damaged in DVC's cache; delete it and f/b, then run `dvc repro make`.")
    file.unlink()
    (repo / "f/b").unlink()
    dvc(repo, "repro", "make")
    assert verify(repo)[0] == 0


def test_the_suggested_steps_repeat_no_stage_before_the_damaged_one(repo: Path) -> None:
    """Which may be a training of hours, and on a GPU gives other bytes.

    DVC's run cache contains the metrics of a stage with dependencies, but no checkout restores them.
    """
    headline = Path("results/headline/m.json")
    (repo / headline).parent.mkdir(parents=True)
    before = '  before: {cmd: "echo ran >> log && echo b > b", outs: [b]}\n'
    graph = STAGES.replace("make: {", "make: {deps: [b], ").replace("m.json", str(headline))
    (repo / "dvc.yaml").write_text(graph + before)
    dvc(repo, "repro", "--force")
    (repo / headline).write_text("2\n")
    file = cached(repo, "two\n")
    file.chmod(0o644)
    file.write_text("TWO\n")
    code, said = verify(repo)
    assert code == 2
    assert said == [
        f"{file.relative_to(repo)} (of f/b) is damaged in DVC's cache; delete it and f/b, then run `dvc repro make`.",
        f"{headline} does not match dvc.lock; delete it, then run `dvc repro make`.",
    ]
    for damaged in (file, repo / "f/b", repo / headline):
        damaged.unlink()
    dvc(repo, "repro", "make")
    assert verify(repo)[0] == 0
    assert (repo / "log").read_text() == "ran\n"


def test_a_damaged_or_missing_dvc_lock_is_reported_in_one_sentence(repo: Path) -> None:
    for damaged in ("stages:\n  make: 7\n", "stages: " + "[" * 50_000 + "]" * 50_000):  # the latter crashes libyaml
        (repo / "dvc.lock").write_text(damaged)
        assert verify(repo) == (
            2,
            ["dvc.lock is truncated or damaged; run `make repro`, which restores the last complete copy."],
        )
    (repo / "dvc.lock").write_text("<<<<<<< HEAD\nstages: {}\n=======\nstages:\n>>>>>>> other\n")
    code, (said,) = verify(repo)
    assert code == 2
    assert "dvc.lock has git's conflict markers" in said
    (repo / "dvc.lock").unlink()
    assert verify(repo) == (2, ["dvc.lock does not exist, so there are no outputs yet; run `make repro`."])


def test_stages_that_have_not_run_here_are_counted_and_are_not_faults(repo: Path) -> None:
    """A fresh clone has the committed dvc.lock and the metrics that git keeps, but no other output."""
    with (repo / "dvc.lock").open("a") as lock:
        lock.write(NOT_RUN)
    (repo / "results/headline").mkdir(parents=True)
    (repo / "results/headline/rise.json").write_text("1\n")
    (repo / "results/summary").mkdir()
    (repo / "results/summary/rise.csv").write_text("two\n")  # checked out by chance: the content of f/b
    code, said = verify(repo)
    assert (code, said[0]) == (0, "3 files and DVC's cache match dvc.lock.")
    assert said[1].startswith("Stages of dvc.lock without outputs here: 1, such as rise-report; `make repro` runs")
    shutil.rmtree(repo / "f")
    shutil.rmtree(repo / ".dvc/cache")
    shutil.rmtree(repo / "results/summary")
    (repo / "m.json").unlink()
    code, said = verify(repo)
    assert code == 2
    assert said[0].startswith("no outputs are here yet; `make repro` runs")


@pytest.mark.parametrize("cache", ["elsewhere", "gone"])
def test_files_in_a_folder_are_verified_with_a_relocated_cache_and_without_a_cache(
    repo: Path, tmp_path_factory: pytest.TempPathFactory, cache: str
) -> None:
    if cache == "elsewhere":
        other = tmp_path_factory.mktemp("shared")
        shutil.copytree(repo / ".dvc/cache", other, dirs_exist_ok=True)
        dvc(repo, "cache", "dir", "--local", str(other))
    shutil.rmtree(repo / ".dvc/cache")
    assert verify(repo) == (0, ["3 files and DVC's cache match dvc.lock."])
    (repo / "f/a").write_text("One\n")
    code, (said,) = verify(repo)
    assert code == 2
    assert (
        said
        == {
            "elsewhere": "f/a does not match dvc.lock; `dvc checkout --force make` restores it.",
            "gone": "f does not match dvc.lock and is missing from DVC's cache; delete it, then run `dvc repro make`.",
        }[cache]
    )
