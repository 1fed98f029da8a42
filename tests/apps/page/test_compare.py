"""Comparison of runs: params that differ, paired differences, and tasks whose outcome changed."""

from __future__ import annotations

import shutil
import subprocess
from hashlib import md5
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from urllib.parse import parse_qs

import pytest

from selfimprove.apps.page import compare
from selfimprove.apps.page.run import Run
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Outcome
from selfimprove.core.outcomes import compare as paired
from selfimprove.core.records import read_jsonl, write_jsonl
from tests.support.reports import write_rise

OUTCOMES = Path("results/rise/iter1/outcomes.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rise(tmp_path / "run")
    (tmp_path / "run/params.yaml").write_text("run: {seed: 1}\nrise: {lr: 0.1}\n")
    return tmp_path / "run"


def worse(path: Path) -> None:
    """The first two tasks are no longer solved, the last one is."""
    outcomes = read_jsonl(path, Outcome)
    for place, value in ((0, 0.0), (1, 0.0), (-1, 1.0)):
        outcomes[place].values["m1@t2"] = value
    write_jsonl(path, outcomes)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=folder, check=True, capture_output=True
    )


def check(run: Path, shown: dict[str, Any], before: Path) -> None:
    assert shown["params"] == [("rise.lr", "0.2", "0.1")]
    [change] = [one for one in shown["changes"] if one["title"].startswith("RISE, iteration 1")]
    assert [task["id"] for task in change["up"]] == ["problem-0", "problem-1"]
    assert [task["id"] for task in change["down"]] == ["problem-11"]
    [table] = shown["tables"]
    gain = paired(read_jsonl(run / OUTCOMES, Outcome), read_jsonl(before, Outcome))["m1@t2"]
    row = next(row for row in table.rows if row[0] == "RISE, iteration 1")
    assert row[-2].strip() == f"+{gain['mean']:.3f}±{gain['se']:.3f}".replace("0.", ".")
    assert row[-1] == "yes"


def test_a_run_in_another_folder_is_compared(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "params.yaml").write_text("run: {seed: 1}\nrise: {lr: 0.2}\n")
    worse(other / OUTCOMES)
    here = Run(run)
    [found] = compare.others(here, [str(other)])
    check(run, compare.shown(here, found), other / OUTCOMES)


@pytest.mark.parametrize("shared", [False, True])
def test_the_last_commit_s_outcomes_are_read_from_dvc_s_cache_wherever_it_is(
    run: Path, tmp_path: Path, shared: bool
) -> None:
    place = tmp_path / "shared" if shared else run / ".dvc/cache"
    if shared:
        (run / ".dvc").mkdir()
        (run / ".dvc/config.local").write_text(f"[cache]\n    dir = {place}\n")
    kept = tmp_path / "kept.jsonl"
    shutil.copyfile(run / OUTCOMES, kept)
    worse(kept)
    digest = md5(kept.read_bytes()).hexdigest()
    cached = place / "files/md5" / digest[:2] / digest[2:]
    cached.parent.mkdir(parents=True)
    shutil.copyfile(kept, cached)
    lock = "schema: '2.0'\nstages:\n  rise-evaluate@iter1:\n    cmd: x\n    outs:\n    - path: {}\n      md5: {}\n"
    (run / "dvc.lock").write_text(lock.format(OUTCOMES, digest))
    (run / "params.yaml").write_text("run: {seed: 1}\nrise: {lr: 0.2}\n")
    git(run, "init", "-q")
    git(run, "add", "dvc.lock", "params.yaml")
    git(run, "commit", "-qm", "one")
    assert compare.others(Run(run), []) == []
    (run / "params.yaml").write_text("run: {seed: 1}\nrise: {lr: 0.1}\n")
    (run / "dvc.lock").write_text(lock.format(OUTCOMES, "0" * 32))
    here = Run(run)
    [found] = compare.others(here, [])
    assert found.name == "the last commit"
    check(run, compare.shown(here, found), kept)
    cached.unlink()
    assert compare.others(Run(run), []) == [], "a clone has the committed dvc.lock but none of its results"


def test_only_the_last_commit_s_experiments_are_compared_by_default_and_any_by_name(run: Path) -> None:
    (run / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    git(run, "init", "-q")
    git(run, "add", "dvc.lock", "params.yaml")
    for name in ("earlier", "latest"):
        git(run, "commit", "-qm", name, "--allow-empty")
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=run, check=True, capture_output=True, text=True).stdout
        git(run, "update-ref", f"refs/exps/{head[:2]}/{head.strip()[2:]}/of-{name}", "HEAD")
    assert [one.name for one in compare.others(Run(run), [])] == ["of-latest"]
    assert [one.name for one in compare.others(Run(run), ["of-earlier"])] == ["of-earlier"]


@pytest.mark.parametrize("name", ["no-such-run", "--output=/tmp/x", "HEAD"])
def test_a_name_that_is_neither_a_folder_of_a_run_nor_a_commit_is_refused(name: str, run: Path) -> None:
    with pytest.raises(UserError, match="is neither the folder of a run nor a commit"):
        compare.others(Run(run), [name])


def test_rows_on_different_tasks_are_compared_without_pairing(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    outcomes = read_jsonl(other / OUTCOMES, Outcome)
    write_jsonl(other / OUTCOMES, [one.model_copy(update={"id": f"new-{one.id}"}) for one in outcomes])
    here = Run(run)
    [table] = compare.shown(here, compare.others(here, [str(other)])[0])["tables"]
    assert [row[-1] for row in table.rows] == ["yes", "yes", "no"]


def test_a_metric_with_the_same_tasks_is_paired_beside_one_with_others(run: Path, tmp_path: Path) -> None:
    """Agent-R's revision score is over the failures of a run's own base, its score over the test split."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    worse(other / OUTCOMES)
    (run / OUTCOMES).write_text((run / OUTCOMES).read_text() + '{"id": "extra", "values": {"m1@t1": 1.0}}\n')
    here = Run(run)
    [table] = compare.shown(here, compare.others(here, [str(other)])[0])["tables"]
    row = next(row for row in table.rows if row[0] == "RISE, iteration 1")
    ours, theirs = (
        {one.id: one.values["m1@t2"] for one in read_jsonl(folder / OUTCOMES, Outcome) if "m1@t2" in one.values}
        for folder in (run, other)
    )
    gains = [ours[task] - theirs[task] for task in theirs]
    error = stdev(gains) / len(gains) ** 0.5
    assert row[-2].strip() == f"+{mean(gains):.3f}±{error:.3f}".replace("0.", ".")
    assert row[-1] == "not m1@t1"


def test_a_row_with_other_metrics_is_named_below_the_table_and_the_method_s_rows_stay_marked(
    run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    outcomes = read_jsonl(other / OUTCOMES, Outcome)
    for one in outcomes:
        one.values = {"m1@t2": one.values["m1@t2"]}
    write_jsonl(other / OUTCOMES, outcomes)
    here = Run(run)
    [table] = compare.shown(here, compare.others(here, [str(other)])[0])["tables"]
    assert [(row[0], own) for row, own in zip(table.rows, table.own, strict=True)] == [
        ("base", False),
        ("more SFT", False),
    ]
    assert table.notes[-1] == "not shown, since the two runs share other metrics of them: RISE, iteration 1"


def test_a_link_to_an_episode_keeps_every_character_of_its_id() -> None:
    name = "2+2, A & B 100%25 #1?"
    mine, theirs = ([Outcome(id=name, values={"m1@t5": value})] for value in (1.0, 0.0))
    [task] = compare._changed("rise", "iter1", "m1@t5", mine, theirs)["up"]
    fields = parse_qs(task["link"].partition("#")[2], strict_parsing=True)
    assert fields == {"method": ["rise"], "set": ["iter1/evaluation"], "q": [name]}
