"""How DVC is driven: a line per stage, the end of a failed stage's output, and resuming from there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from selfimprove.pipeline.rehearsal.folder import HOME, LOCAL_CONFIG
from selfimprove.pipeline.rehearsal.rule import Replacement
from selfimprove.pipeline.rehearsal.run import _composed, _environment, minutes_of, repro, run_make
from selfimprove.pipeline.rehearsal.tell import replacements
from tests.support.processes import gone, wait_until
from tests.support.repo_copy import ROOT, environment
from tests.support.sentences import refused_with

GRAPH = """\
stages:
  first: {cmd: echo 1 > first, outs: [first]}
  second: {cmd: "%s", deps: [first], outs: [second]}
  third: {cmd: cat second > third, deps: [second], outs: [third]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text(LOCAL_CONFIG)
    (tmp_path / "params.yaml").write_text("run: {seed: 1, threads: 1}\n")
    (tmp_path / "selfimprove").symlink_to(ROOT / "selfimprove")
    return tmp_path


@pytest.mark.slow
def test_a_failed_stage_is_reported_with_its_last_output_and_the_next_call_resumes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "dvc.yaml").write_text(GRAPH % r"printf 'no \\033[31mpart\\n' && cat part > second")
    assert repro(folder, ["third"], environment()) != 0
    said = capsys.readouterr()
    assert [line.split()[-1] for line in said.out.splitlines()] == ["first", "second"]
    assert "stage second failed" in said.err
    assert r"no \x1b[31mpart" in said.err  # a stage's output cannot control the terminal
    assert "\033" not in said.err
    assert minutes_of(folder, ["third"]).keys() == {"first"}
    (folder / "part").write_text("2")
    assert repro(folder, ["third"], environment()) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["second", "third"]
    assert list(minutes_of(folder, ["third"])) == ["first", "second", "third"]
    assert list(minutes_of(folder, ["second"])) == ["first", "second"]


@pytest.mark.slow
def test_a_sigterm_to_the_rehearsal_also_ends_its_stage(folder: Path) -> None:
    (folder / "dvc.yaml").write_text(GRAPH % "echo $$ > pid && sleep 600")
    program = "import sys; from pathlib import Path; from selfimprove.pipeline.rehearsal.run import repro; import os; "
    program += "repro(Path(sys.argv[1]), ['third'], dict(os.environ))"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: (folder / "pid").is_file() and (folder / "pid").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) != 0
    assert gone(int((folder / "pid").read_text()))


def test_equal_changes_of_several_keys_share_one_line_and_changed_sizes_are_only_counted() -> None:
    made = [
        Replacement("rise.rows.base.train.device", "cuda", "cpu", "device"),
        Replacement("rise.rows.a.train.device", "cuda", "cpu", "device"),
        Replacement("base.rise.model", "a/b", "models/small", "model"),
        Replacement("rise.tasks.train", 6000, 6, "size"),
    ]
    lines = replacements(made)
    assert lines[0].split() == ["device", "device", "(2", "places):", "cuda", "->", "cpu"]
    assert lines[1].split() == ["model", "base.rise.model:", "a/b", "->", "models/small"]
    assert lines[2].startswith("size      1 keys")
    assert os.linesep not in "".join(lines)


def test_concurrent_rehearsals_build_a_missing_environment_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("env:\n\t@mkdir building && sleep 0.3 && rmdir building\n")
    (tmp_path / HOME).mkdir()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda goal: run_make(tmp_path, goal), ["env"] * 3))


@pytest.mark.parametrize(("gpus", "build"), [(0, "cpu"), (2, "gpu")])
def test_a_rehearsal_makes_xtuner_s_environment_for_the_machine_and_does_not_replace_that_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, build: str
) -> None:
    (tmp_path / "Makefile").write_text("XTUNER ?= cpu\nenv-xtuner:\n\t@echo $(XTUNER) > built\n")
    (tmp_path / HOME).mkdir()
    monkeypatch.delenv("XTUNER", raising=False)
    _environment({"agent_r": {"engines": {}, "train": {"backend": "xtuner"}}}, ["agent_r"], tmp_path, gpus)
    assert (tmp_path / "built").read_text() == f"{build}\n"


def test_a_profile_s_own_model_folder_may_be_missing_here_because_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    shutil.copy(ROOT / "profiles/default.yaml", tmp_path / "profiles")
    (tmp_path / "profiles/own.yaml").write_text("base:\n  rise: {model: /elsewhere/llama-7b}\n")
    own = _composed("own", tmp_path)["base"]["rise"]
    assert own["model"] == "/elsewhere/llama-7b"
    assert own["revision"] is None
    (tmp_path / "profiles/own.yaml").write_text("base:\n  rise: {model: /elsewhere/llama-7b, revision: 3}\n")
    with refused_with("base.rise.revision: input should be a valid string"):
        _composed("own", tmp_path)
