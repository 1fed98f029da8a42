"""The report's data on search trees and pairs: nodes, revisions and differing words, damaged lines reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfimprove.apps.page.build import build
from selfimprove.apps.page.scores import Wanted
from selfimprove.core.records import write_rows
from tests.support.reports import chunk, make_tree, write_pairs, write_trees


def test_a_tree_is_shown_with_its_nodes_and_its_revision(tmp_path: Path) -> None:
    trees = [make_tree(number=number, branches=3 + number) for number in range(3)]
    write_trees(tmp_path / "run", trees)
    build(tmp_path / "run", tmp_path / "out")
    [index] = chunk(tmp_path / "out", "trees-index")["sets"]
    assert index["nodes"] == [len(tree.nodes) for tree in trees]
    assert index["revisions"] == [1, 1, 1]
    shown = chunk(tmp_path / "out", f"{index['file']}-0")
    for tree, one in zip(trees, shown, strict=True):
        assert [node[0] for node in one["nodes"]] == [node.parent for node in tree.nodes]
        [revision] = one["revisions"]
        assert revision["good"] == tree.path(tree.leaves()[-1])
        assert revision["bad"] == tree.path(tree.leaves()[0])
        assert revision["cut"] == revision["bad"][1]
        assert [verdict[:2] for verdict in revision["verdicts"]] == [
            [revision["bad"][0], "Good"],
            [revision["cut"], "Bad"],
        ]
        assert [part[1] for said in revision["m"] if said["r"] == "assistant" for part in said["p"]] == [
            0,
            0,
            0,
            1,
            1,
            1,
            1,
            1,
        ]


def test_a_damaged_tree_is_reported_with_its_line(tmp_path: Path) -> None:
    write_trees(tmp_path / "run", [make_tree(), make_tree(number=1)])
    path = tmp_path / "run/data/agent_r/iter1/trees.jsonl"
    first, second = path.read_text().splitlines()
    broken = json.loads(first)
    broken["nodes"][2]["parent"] = 9
    path.write_text(f"{json.dumps(broken)}\n{second}\n")
    built = build(tmp_path / "run", tmp_path / "out")
    assert built.problems[0].startswith("data/agent_r/iter1/trees.jsonl, line 1: not a search tree")
    assert chunk(tmp_path / "out", "trees-index")["sets"][0]["ids"] == ["textcraft-1"]


def test_pairs_mark_the_words_that_differ(tmp_path: Path) -> None:
    write_pairs(tmp_path / "run", [("finish[red cheese]", "finish[blue cheese]"), ("the same", "the same")])
    build(tmp_path / "run", tmp_path / "out")
    [named] = chunk(tmp_path / "out", "pairs-index")["sets"]
    assert chunk(tmp_path / "out", f"{named['file']}-index")["same"] == "di"
    first, second = chunk(tmp_path / "out", f"{named['file']}-0")
    assert first["real"] == [["assistant", [[0, "finish["], [1, "red"], [0, " cheese]"]]]]
    assert first["generated"] == [["assistant", [[0, "finish["], [1, "blue"], [0, " cheese]"]]]]
    assert second["real"] == [["assistant", [[0, "the same"]]]]


def test_every_pair_is_on_the_page(tmp_path: Path) -> None:
    write_pairs(tmp_path / "run", [(f"finish[{number}]", "finish[]") for number in range(1000)])
    steps = [{"command": "move east", "reflection": "So."}]
    lines = [
        {"id": f"{task}-{kind}", "task_id": task, "level": "full", "steps": steps, "info": kind, "env": "taxi"}
        for task, kind in [*((0, kind) for kind in ("positive", "negative_1", "negative_2")), (1, "negative_3")]
    ]
    (tmp_path / "run/results/reflect_rl").mkdir(parents=True)
    (tmp_path / "run/data/reflect_rl").mkdir(parents=True)
    write_rows(tmp_path / "run/data/reflect_rl/trajectories.jsonl", lines)
    build(tmp_path / "run", tmp_path / "out")
    negatives, pairs = chunk(tmp_path / "out", "pairs-index")["sets"]
    assert [one["sides"] for one in (negatives, pairs)] == [["Positive", "Negative"], ["Expert", "Opponent"]]
    assert chunk(tmp_path / "out", f"{pairs['file']}-index")["ids"] == [f"iter0-question-{n}" for n in range(1000)]
    assert chunk(tmp_path / "out", f"{negatives['file']}-index")["ids"] == [
        "0-negative_1",
        "0-negative_2",
        "1-negative_3",
    ]
    shown = chunk(tmp_path / "out", f"{negatives['file']}-0")
    assert [bool(one["real"]) for one in shown] == [
        True,
        True,
        False,
    ]  # no positive trajectory has the start of the last one


@pytest.mark.parametrize(("wanted", "reason"), [("no", "made without them"), ("auto", "too large or not available")])
def test_pairs_without_margins_say_why(wanted: Wanted, reason: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "run", [("finish[red cheese]", "finish[blue cheese]")])
    build(tmp_path / "run", tmp_path / "out", wanted)
    page = (tmp_path / "out/pairs.html").read_text(encoding="utf-8")
    assert page.count("No margins: ") == 1
    assert reason in page


def test_paths_that_no_model_is_trained_on_as_pairs_lack_no_margins(tmp_path: Path) -> None:
    write_trees(tmp_path / "run", [make_tree()])
    build(tmp_path / "run", tmp_path / "out")
    assert [one["sides"] for one in chunk(tmp_path / "out", "pairs-index")["sets"]] == [["Good path", "Bad path"]]
    assert "No margins" not in (tmp_path / "out/pairs.html").read_text(encoding="utf-8")
