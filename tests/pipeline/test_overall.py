"""The progress of the whole run that `make repro` shows, and the logs of stages."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from selfimprove.pipeline.overall import SECONDS, Overall, stage_names
from selfimprove.pipeline.profiles import compose
from selfimprove.pipeline.stage_log import kept_log
from tests.support.repo_copy import ROOT

GRAPH = """
stages:
  inputs: {cmd: 'true'}
  rise-data: {cmd: 'true'}
  base: {foreach: '${base}', do: {cmd: 'true'}}
  rise-finetune: {foreach: '${rise.rows}', do: {cmd: 'true'}}
  rise-generate: {foreach: '${rise.iterations}', do: {cmd: 'true'}}
  spin-data: {cmd: 'true'}
"""
PARAMS = "base: {rise: {}, spin: {}}\nrise: {rows: {iter1: {}, iter2: {}}, iterations: {}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_stages_of_a_goal_are_derived_from_the_graph_and_the_params(folder: Path) -> None:
    rise = ["inputs", "rise-data", "base@rise", "rise-finetune@iter1", "rise-finetune@iter2"]
    assert stage_names(["rise-report"]) == rise
    assert sorted(stage_names(["report"])) == sorted([*rise, "base@spin", "spin-data"])


def test_the_default_profile_s_stages_include_the_reports_and_have_no_duplicates(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(compose("default", ROOT / "profiles"))
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    names = stage_names(["report"], tmp_path)
    assert len(names) == len(set(names))
    assert {"base@spin", "rise-finetune@iter2", "spin-report", "report"} <= set(names)


def test_a_running_stage_is_shown_with_its_position_and_in_later_runs_the_time_left(folder: Path) -> None:
    first = Overall(["rise-report"])
    assert first.line("Running stage 'inputs':\n") == "Running stage 'inputs':\n"
    assert first.line("Stage 'rise-data' didn't change, skipping\n") == "Stage 'rise-data' didn't change, skipping\n"
    assert first.line("Running stage 'base@rise':\n") == "Running stage 'base@rise' (stage 3 of 5):\n"
    assert first.line("> python -m stages.base\n") == "> python -m stages.base\n"
    for name in ("iter1", "iter2"):
        first.line(f"Running stage 'rise-finetune@{name}':\n")
    first.end()
    timed = {"inputs", "base@rise", "rise-finetune@iter1", "rise-finetune@iter2"}
    assert json.loads(SECONDS.read_text()).keys() == timed
    SECONDS.write_text(json.dumps({"inputs": 0, "rise-data": 0, "base@rise": 30, "rise-finetune@iter1": 600,
                                   "rise-finetune@iter2": 210}))  # fmt: skip
    again = Overall(["rise-report"])
    for name in ("inputs", "rise-data"):
        again.line(f"Stage '{name}' didn't change, skipping\n")
    assert again.line("Running stage 'base@rise':\n") == (
        "Running stage 'base@rise' (stage 3 of 5, at most about 14 min left):\n"
    )
    SECONDS.write_text('{"rise-finetune@iter1": "long", "rise-finetune@iter2": 210}')
    assert "(stage 4 of 5)" in again.line("Running stage 'rise-finetune@iter1':\n")
    SECONDS.unlink()
    SECONDS.mkdir()  # a failure to write must not end the run
    again.end()
    SECONDS.rmdir()
    SECONDS.write_text("{torn")
    assert "(stage 4 of 5)" in again.line("Running stage 'rise-finetune@iter1':\n")


def test_an_up_to_date_run_reads_neither_graph_nor_params(folder: Path) -> None:
    (folder / "dvc.yaml").unlink()
    overall = Overall(["rise-report"])
    assert overall.line("Running stage 'inputs':\n") == "Running stage 'inputs':\n"
    overall.end()
    assert json.loads(SECONDS.read_text()).keys() == {"inputs"}


def test_a_stage_s_log_contains_its_messages_and_tracebacks_but_no_progress_bars(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kept_log("rise-generate@iter1"):
        print("rise-generate@iter1: 3/5", file=sys.stderr)
        print("\x1b[2K bar", file=sys.stderr)
    with pytest.raises(ZeroDivisionError), kept_log("rise-generate@iter1"):
        print(1 // 0, file=sys.stderr)
    text = (folder / ".scratch/logs/rise-generate@iter1.log").read_text()
    assert text.count("rise-generate@iter1\n") == 2  # a heading for each run
    assert "rise-generate@iter1: 3/5" in text
    assert "ZeroDivisionError" in text
    assert "2K" not in text
    assert "3/5" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["full", "no folder"])
def test_a_stage_continues_and_prints_its_messages_if_its_log_cannot_be_written(
    folder: Path, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    logs = folder / ".scratch/logs"
    if where == "full":
        logs.mkdir(parents=True)
        (logs / "rise-generate@iter1.log").symlink_to("/dev/full")
    else:
        logs.parent.mkdir()
        logs.touch()
    with kept_log("rise-generate@iter1"):
        print("rise-generate@iter1: cannot write; free some space", file=sys.stderr)
        print("rise-generate@iter1: stopped", file=sys.stderr)
    told, *said = capfd.readouterr().err.splitlines()
    assert told.startswith("rise-generate@iter1: the log .scratch/logs/rise-generate@iter1.log can't be written (")
    assert said == ["rise-generate@iter1: cannot write; free some space", "rise-generate@iter1: stopped"]


def test_a_stage_whose_standard_error_is_no_longer_read_goes_on_and_keeps_its_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C also ends the ``tee`` of ``make repro 2>&1 | tee log``, before the stage has saved its work."""
    read, write = os.pipe()
    os.close(read)
    shown = os.fdopen(write, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", shown)
    with kept_log("rise-generate@iter1"):
        print("saves", file=sys.stderr, flush=True)
    with pytest.raises(BrokenPipeError):
        shown.close()
    assert (folder / ".scratch/logs/rise-generate@iter1.log").read_text().endswith("saves\n")
