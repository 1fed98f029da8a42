"""``make compare``: one row per run, headline metrics with errors, and the params that each run changed."""

from __future__ import annotations

import math
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from selfimprove.apps.report.compare import Run, _lock, _recorded, main, read_runs, table_of, unreadable
from selfimprove.apps.report.table import show
from selfimprove.core.git import git
from selfimprove.methods.summary import headline_metrics


def data(lr: float, mean: float, **more: Any) -> dict[str, Any]:
    """A revision in the format of ``dvc exp show --json``."""
    rise = {"m1@t5": mean, "m1@t5 error": 0.021, "minus more_sft": mean - 0.7, "minus more_sft error": 0.024}
    missing = {"error": {"type": "FileNotFoundError", "msg": "no"}}
    return {
        "params": {"params.yaml": {"data": {"run": {"seed": 17}, "rise": {"iter2": {"lr": lr}}, **more}}},
        "metrics": {"results/headline/rise.json": {"data": {"rise": rise}}, "results/headline/spin.json": missing},
    }


def shown(workspace: dict[str, Any]) -> list[dict[str, Any]]:
    run = {"rev": "5787e96eb7", "name": "chill-maya", "data": data(2e-3, 0.75)}
    experiment = {"name": "chill-maya", "revs": [run]}
    commit = {"rev": "59bc59c500", "name": "main", "data": data(1e-3, 0.696), "experiments": [experiment]}
    return [{"rev": "workspace", "name": None, "data": workspace}, commit]


def always(revision: str, method: str, params: Any) -> bool:
    return True


def printed(workspace: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, file=StringIO(), record=True)
    show(table_of(list(read_runs(shown(workspace), always))), console)
    return console.export_text()


def test_the_commit_comes_first_then_its_experiments_with_their_changed_params() -> None:
    text = printed(data(1e-3, 0.696))
    lines = text.splitlines()
    assert [line.split()[0] for line in lines if "±" in line and "mean" not in line] == ["main", "chill-maya"]
    assert "0.696±0.021" in text
    assert "-0.004±0.024" in text
    assert "+0.050±0.024" in text
    assert "chill-maya: rise.iter2.lr: 0.001 → 0.002" in text
    assert "workspace" not in text  # it equals the commit


def test_a_workspace_that_differs_is_a_row_and_its_added_params_are_listed() -> None:
    text = printed(data(1e-3, 0.71, extra={"x": 1}))
    assert "0.710±0.021" in text
    assert "workspace: extra.x: none → 1" in text


def test_a_revision_that_dvc_cannot_read_is_left_out_and_named() -> None:
    listed = shown(data(1e-3, 0.696))
    error = {"type": "OSError", "msg": "[Errno 28] No space left on\n\x1b[2Jdevice"}
    listed[1] |= {"data": None, "error": error}
    said = r"main is left out: DVC cannot read it ([Errno 28] No space left on \x1b[2Jdevice)."
    assert list(unreadable(listed)) == [said]
    assert [name for name, _, _ in read_runs(listed, always)] == ["chill-maya", "workspace"]
    listed[1]["experiments"][0]["revs"][0] |= {"data": None, "error": error}
    assert list(unreadable(listed)) == [said, said.replace("main", "chill-maya")]
    assert [name for name, _, _ in read_runs(listed, always)] == ["workspace"]
    listed[0] |= {"data": None, "error": error}
    assert next(unreadable(listed)) == said.replace("main", "workspace")
    assert list(read_runs(listed, always)) == []


def test_a_damaged_metrics_file_hides_only_its_own_columns() -> None:
    broken = data(1e-3, 0.71)
    broken["metrics"] |= {f"results/headline/{n}.json": {"data": one} for n, one in enumerate([[1], {"spin": 3}, 7])}
    broken["metrics"]["x.json"] = {"data": {"agent_r": {"score": 1.0, "score error": "none"}}}
    broken["metrics"]["y.json"] = {"data": {"agent_r": {"nan": math.nan, "infinite": math.inf, "large": 10**400}}}
    broken["params"]["params.yaml"]["data"]["\x1b[2J"] = 1
    text = printed(broken)
    assert "0.710±0.021" in text
    assert "agent_r" not in text
    assert "\\x1b[2J: none → 1" in text


def test_of_hundreds_of_changed_params_a_dozen_are_listed_and_the_rest_counted() -> None:
    text = " ".join(printed(data(1e-3, 0.71, extra={f"x{i:03}": 1 for i in range(200)})).split())
    assert "extra.x011: none → 1; and 188 more (see `dvc params diff`)" in text
    assert "x012" not in text


def test_the_table_of_four_methods_fits_into_eighty_columns_and_shows_every_metric() -> None:
    workspace = data(3e-3, 0.7)
    headings, cells = ["rise m1@t5", "rise minus more_sft"], ["0.700±0.021", "+0.000±0.024"]
    for method, score, gain in (("agent_r", 0.1, 0.01), ("reflect_rl", 0.2, 0.02), ("spin", 0.3, 0.03)):
        metrics = {"score": score, "score error": 0.011, "minus more_sft": gain, "minus more_sft error": 0.012}
        workspace["metrics"][f"results/headline/{method}.json"] = {"data": {method: metrics}}
        headings += [f"{method} score", f"{method} minus more_sft"]
        cells += [f"{score:.3f}±0.011", f"+{gain:.3f}±0.012"]
    text = printed(workspace)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert [heading for heading in headings if heading not in text] == []
    of_workspace = " ".join(line for line in lines if line.split()[:1] == ["workspace"])  # a line in each of the parts
    assert [cell for cell in cells if cell not in of_workspace] == []


def test_results_of_other_params_are_not_shown() -> None:
    """An experiment with another seed that ran one method still contains the commit's results of the others."""

    def own(revision: str, method: str, params: Any) -> bool:
        return revision != "5787e96eb7" or (method != "rise" and params["rise"]["iter2"]["lr"] == 2e-3)

    runs = shown(data(1e-3, 0.696))
    spin = {"results/headline/spin.json": {"data": {"spin": {"em": 0.5, "em error": 0.01}}}}
    for one in (runs[1], runs[1]["experiments"][0]["revs"][0]):
        one["data"]["metrics"] = {**one["data"]["metrics"], **spin}
    cells = {name: sorted(cells) for name, _, cells in read_runs(runs, own)}
    assert cells["main"] == ["rise m1@t5", "rise minus more_sft", "spin em"]
    assert cells["chill-maya"] == ["spin em"]


def test_results_belong_to_the_params_that_dvc_lock_records_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JSON every key is text; in dvc.lock the 3 below is a number."""
    monkeypatch.chdir(tmp_path)
    _lock.cache_clear()
    (tmp_path / "dvc.yaml").write_text("stages:\n  rise-report: {cmd: x, params: [rise.steps, run.seed]}\n")
    recorded = "stages: {rise-report: {params: {params.yaml: {rise.steps: {3: 1.0}, run.seed: %d}}}}\n"
    (tmp_path / "dvc.lock").write_text(recorded % 17)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]):
        assert git(*words)[0] == 0
    (tmp_path / "dvc.lock").write_text(recorded % 18)
    params = {seed: {"rise": {"steps": {"3": 1.0}}, "run": {"seed": seed}} for seed in (17, 18)}
    assert [_recorded("HEAD", "rise", params[seed]) for seed in (17, 18)] == [True, False]
    assert [_recorded("workspace", "rise", params[seed]) for seed in (17, 18)] == [False, True]
    assert not _recorded("no-such-revision", "rise", params[17])
    _lock.cache_clear()


def test_markup_and_control_characters_in_the_names_of_runs_and_metrics_are_shown() -> None:
    run = shown(data(1e-3, 0.696))
    run[1]["experiments"][0]["revs"][0]["name"] = "[red]x[/red]"
    run[1]["data"]["metrics"]["own.json"] = {"data": {"rise": {"[/b]\x1b[2J": 0.5}}}
    console = Console(width=80, file=StringIO(), record=True)
    show(table_of(list(read_runs(run, always))), console)
    text = console.export_text()
    assert "[red]x[/red]" in text
    assert "rise [/b]\\x1b[2J" in text


def test_the_headline_is_the_last_row_s_metric_and_its_paired_difference_to_more_sft() -> None:
    metric, gain = {"mean": 0.7, "se": 0.02, "n": 9}, {"mean": -0.1, "se": 0.03, "n": 9}
    summary = {
        "columns": ["em"], "order": ["base", "more_sft", "iter1"], "last": "iter1",
        "rows": {"iter1": {"metrics": {"em": metric}}},
        "last_minus": {"base": {"em": metric}, "more_sft": {"em": gain}},
    }  # fmt: skip
    assert headline_metrics("spin", summary) == {
        "spin": {"em": 0.7, "em error": 0.02, "minus more_sft": -0.1, "minus more_sft error": 0.03}
    }


def test_the_params_in_which_the_experiments_differ_are_listed_first_also_beside_another_profile_s() -> None:
    common = {f"agent_r.{letter}": 1 for letter in "abcdefghijklmnop"}
    runs: list[Run] = [
        ("main", {}, {}),
        *((f"lr-{lr}", {**common, "spin.lr": lr}, {"rise m1@t5": "1"}) for lr in (1, 2)),
    ]
    notes = str(table_of(runs).caption).splitlines()[1:]
    assert [note.split("; ")[0] for note in notes] == ["lr-1: spin.lr: none → 1", "lr-2: spin.lr: none → 2"]
    assert all(note.count("; ") == 12 and "agent_r.a: none → 1" in note and "and 5 more" in note for note in notes)


def test_notes_have_the_console_s_width_and_not_that_of_the_last_part_of_a_table() -> None:
    table = Table("run", title="a title of some length")
    for number in range(4):
        table.add_column(f"column {number}", justify="right")
    table.add_row("one", *"1234")
    table.caption = "a note of more than twenty-four characters"
    console = Console(width=44, file=StringIO(), record=True)
    show(table, console)
    lines = console.export_text().splitlines()
    assert lines[0] == "a title of some length"
    assert lines[-1] == "a note of more than twenty-four characters"


def test_a_folder_that_git_refuses_is_reported_with_git_s_own_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match="2"):
        main()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(f"run `git config --global --add safe.directory {tmp_path}`.")
