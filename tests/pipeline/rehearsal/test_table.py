"""docs/gpu.md shows the content of docs/rehearsals.json, and a local rehearsal is added to both."""

from __future__ import annotations

from pathlib import Path

from selfimprove.pipeline.rehearsal.rule import Replacement
from selfimprove.pipeline.rehearsal.table import BEGIN, END, FILE, OUTCOME, PAGE, collect, outcome, read, with_table
from tests.pipeline.rehearsal.test_rule import REHEARSABLE
from tests.support.repo_copy import ROOT

REPLACED = [
    Replacement("base.rise.model", "a/b", "models/small", "model"),
    Replacement("base.rise.revision", "0123", None, "model"),
    Replacement("rise.engines.teacher.base_url", "https://api", "http://127.0.0.1:9/v1", "service"),
    Replacement("rise.rows.base.train.launcher.processes", 4, 2, "device"),
    Replacement("rise.rows.iter1.train.launcher.processes", 4, 2, "device"),
    Replacement("rise.rows.base.train.device", "cuda", "cpu", "device"),
    Replacement("rise.tasks.train", 6000, 6, "size"),
    Replacement("spin.rows.outcome_dpo", {}, None, "left out"),
]


def test_the_page_shows_every_rehearsal_and_every_profile_has_one() -> None:
    rows = read(ROOT)
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == with_table(page, rows), "run `make docs`"
    assert {one.profile for one in rows} == set(REHEARSABLE)


def test_a_new_rehearsal_replaces_the_older_one_of_the_same_profile_and_kind(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text(f"before\n{BEGIN}old\n{END}after\n")
    folder = tmp_path / ".rehearsal/rise-llama2-7b"
    folder.mkdir(parents=True)
    for minutes, quick in ((3.0, False), (4.0, True), (5.0, False)):
        ran = outcome("rise-llama2-7b", ["rise"], REPLACED, {"a": 1.0, "b": minutes}, quick=quick, gpus=0)
        (folder / OUTCOME).write_text(ran.model_dump_json())
        collect(tmp_path)
    assert [(one.quick, one.stages, one.minutes) for one in read(tmp_path)] == [(False, 2, 6.0), (True, 2, 5.0)]
    page = (tmp_path / PAGE).read_text()
    assert page.startswith(f"before\n{BEGIN}| profile |")
    assert page.endswith(f"{END}after\n")
    assert "old" not in page
    assert (tmp_path / FILE).is_file()
    row = next(line for line in page.splitlines() if "in full" in line)
    assert row.endswith(
        "| base model: `models/small`, teacher: a local server, processes: `2` (of 4), without `rows.outcome_dpo` |"
    )


def test_a_rehearsal_of_fewer_methods_does_not_replace_one_of_more(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text(f"before\n{BEGIN}old\n{END}after\n")
    folder = tmp_path / ".rehearsal/smollm2-gpu"
    folder.mkdir(parents=True)
    for methods, minutes in ((["rise"], 1.0), (["rise", "spin"], 2.0), (["spin"], 3.0)):
        ran = outcome("smollm2-gpu", methods, REPLACED, {"a": minutes}, quick=False, gpus=0)
        (folder / OUTCOME).write_text(ran.model_dump_json())
        collect(tmp_path)
    assert [(one.methods, one.minutes) for one in read(tmp_path)] == [(["rise", "spin"], 2.0)]
