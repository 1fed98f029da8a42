"""A damaged file that is still JSON, CSV or YAML is reported with its place and a remedy, and the page is built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.page.build import build
from selfimprove.apps.page.episodes import to_page
from selfimprove.apps.page.figures import sections
from selfimprove.apps.page.graph import locked
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.table import read_summaries
from selfimprove.core.errors import UserError
from tests.support.reports import make_tree, write_pairs, write_reinforcement, write_rise, write_trees

REMEDY = "; restore the file, or run `make repro`."
DEEP = json.loads("[" * 400 + "]" * 400)
MISSING = object()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rise(tmp_path / "run")
    write_trees(tmp_path / "run", [make_tree(), make_tree(number=1)])
    write_pairs(tmp_path / "run", [("a b", "a c"), ("d", "e")])
    write_reinforcement(tmp_path / "run")
    return tmp_path / "run"


def damage(value: Any, keys: str, new: Any) -> None:
    """Replace the value at a dotted path, or remove it."""
    *path, last = [int(key) if key.isdigit() else key for key in keys.split(".")]
    for key in path:
        value = value[key]
    if new is MISSING:
        del value[last]
    else:
        value[last] = new


@pytest.mark.parametrize(
    ("file", "keys", "new", "said"),
    [
        ("results/rise/base/episodes.jsonl", "turns.0.attempts.0.token_ids", ["a"], "not an episode or example"),
        ("results/rise/base/episodes.jsonl", "turns.0.attempts", [], "not an episode or example"),
        ("results/rise/base/episodes.jsonl", "run", {}, "not an episode or example"),
        ("data/rise/iter1/train/examples.jsonl", "messages.1.weight", float("1e999"), "not an episode or example"),
        ("results/reflect_rl/reflect_rl/log.jsonl", "succ", "x", "not an episode or example"),
        ("results/reflect_rl/reflect_rl/log.jsonl", "log.0.detail.0.cost", None, "not an episode or example"),
        ("data/agent_r/iter1/trees.jsonl", "nodes.1.reply", 3, "not a search tree"),
        ("data/agent_r/iter1/trees.jsonl", "nodes", [], "not a search tree"),
        ("data/agent_r/iter1/trees.jsonl", "status", "", "not a search tree"),
        ("data/agent_r/iter1/trees.jsonl", "prompt.0.content", MISSING, "not a search tree"),
        ("data/agent_r/iter1/train/textcraft_centric.jsonl", "high_log", "x", "not a pair log"),
        ("data/agent_r/iter1/train/textcraft_centric.jsonl", "revise_feedback.0", 3, "not a pair log"),
        ("data/spin/iter1/train/pairs.jsonl", "prompt.0.content", 3, "not a pair"),
        ("data/spin/iter1/train/pairs.jsonl", "real", MISSING, "not a pair"),
        ("data/rise/tasks/test.jsonl", "id", DEEP, "not a task"),
    ],
)
def test_a_line_with_a_wrong_value_is_reported_with_its_field(
    file: str, keys: str, new: Any, said: str, run: Path, tmp_path: Path
) -> None:
    first, *others = (run / file).read_text().splitlines(keepends=True)
    line = json.loads(first)
    damage(line, keys, new)
    (run / file).write_text("".join([json.dumps(line).replace("Infinity", "1e999"), "\n", *others]))
    [problem] = build(run, tmp_path / "out").problems
    assert problem.startswith(f"{file}, line 1: {said}")
    assert re.search(rf"\(field '{re.escape(keys.partition('.')[0])}[.\w]*': .+\){re.escape(REMEDY)}$", problem)


@pytest.mark.parametrize(
    ("keys", "new", "said"),
    [
        ("rows.base.metrics", [], "field 'rows.base.metrics'"),
        ("rows.base.metrics.m1@t2", 3, "row 'base' has no estimate of 'm1@t2'"),
        ("rows.base.metrics.m1@t2.se", "x", "field 'rows.base.metrics.m1@t2.estimate.se'"),
        ("order.0", ["base"], "field 'order.0'"),
        ("last_minus.base", {}, "last_minus of row 'base' has no estimate of 'm1@t1'"),
        ("curve.points.1.turn", None, "field 'curve': point 1 has no number 'turn'"),
        ("headline", "none", "row 'base' has no estimate of 'none'"),
        ("headline", None, "field 'headline'"),
        ("rows.base.training_tokens", DEEP, "field 'rows.base.training_tokens'"),
    ],
)
def test_a_summary_with_a_wrong_value_is_reported_with_its_field_and_its_rows_are_shown(
    keys: str, new: Any, said: str, run: Path, tmp_path: Path
) -> None:
    path = run / "results/summary/rise.json"
    summary = json.loads(path.read_text())
    damage(summary, keys, new)
    path.write_text(json.dumps(summary))
    [problem] = build(run, tmp_path / "out").problems
    assert problem.startswith(f"results/summary/rise.json is not a summary of a run ({said}")
    assert problem.endswith("; run `make repro METHOD=rise`.")
    assert "RISE, iteration 1" in (tmp_path / "out/rise.html").read_text()
    with pytest.raises(UserError, match=re.escape(f"is not a summary of a run ({said}")):
        read_summaries(["rise"], run)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("metrics.json", "[]", " cannot be read (Input should be "),
        ("metrics.json", '{"m1@t1": {"mean": "x", "se": 0, "n": 1}}', " cannot be read (field 'm1@t1.estimate.mean'"),
        ("metrics.json", '{"m1@t1": 3}', " has no estimate of m1@t1, m1@t2, unlike other"),
        ("train.json", '{"real_tokens": []}', " cannot be read (field 'real_tokens'"),
        ("outcomes.jsonl", '{"id": "a", "values": 3}', ", line 1: not an outcome (field 'values'"),
    ],
)
@pytest.mark.parametrize("row", ["base", "more_sft"])
def test_without_a_summary_a_damaged_file_of_a_row_is_reported(
    file: str, text: str, said: str, row: str, run: Path, tmp_path: Path
) -> None:
    (run / "results/summary/rise.json").unlink()
    (run / "results/rise" / row / file).write_text(text)
    [problem] = build(run, tmp_path / "out").problems
    assert problem.startswith(f"results/rise/{row}/{file}{said}")
    assert problem.endswith(REMEDY)


def test_a_loss_that_diverged_is_reported_and_left_out_of_its_chart(run: Path) -> None:
    (run / "results/rise/iter1/loss.csv").write_text("step,loss\n1,2.5\n2,nan\n3,inf\n")
    read = Run(run)
    [(_, _, chart)] = dict(sections(read, "rise", None))["Training"]
    [problem] = read.problems
    assert problem.startswith("results/rise/iter1/loss.csv, line 3: loss is nan (such cells: 2)")
    values = [point["y"] for point in chart["data"]["values"] if point["row"] == "RISE, iteration 1"]
    assert values == [2.5]


def test_a_csv_file_that_cannot_be_read_is_reported(run: Path) -> None:
    path = run / "results/rise/iter1/loss.csv"
    for content in (b"step,loss\n1," + b"9" * 200_000, b"step,loss\n1,\xff"):
        path.write_bytes(content)
        read = Run(run)
        assert read.table(path) == []
        assert ["results/rise/iter1/loss.csv cannot be read" in problem for problem in read.problems] == [True]


@pytest.mark.parametrize("text", ["[]", "stages: 3", "stages: {a: {outs: [3]}}", "stages: {a: []}"])
def test_a_damaged_dvc_lock_is_reported(text: str, run: Path) -> None:
    (run / "dvc.lock").write_text(text)
    read = Run(run)
    assert locked(read) == {}
    assert read.problems == ["dvc.lock cannot be read; `git checkout dvc.lock` restores it."]


def test_an_iteration_of_a_log_among_episodes_is_no_episode(run: Path) -> None:
    line = json.loads((run / "results/reflect_rl/reflect_rl/log.jsonl").read_text().splitlines()[0])
    with pytest.raises(ValueError, match="an iteration of a log"):
        to_page(line)
