"""Folders of the original's tree files, imported by the command line (docs/agent-r.md, A44)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.cli import run
from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl
from selfimprove.interop.agent_r import app, from_json, to_json
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.trees import by_hand


def ended(*words: object) -> Any:
    with pytest.raises(SystemExit) as end:
        run(app, [str(word) for word in words])
    return end.value.code or 0


def imported(folder: Path, *options: object) -> list[Tree]:
    target = folder / "trees.jsonl"
    assert ended("import-trees", folder, target, "--env", "corridor", *options) == 0
    return read_jsonl(target, Tree)


def test_trees_are_imported_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    for task in (10, 9, 100):
        write_json(tmp_path / f"search_results_{task}.json", to_json(by_hand({"a": 1.0})))
    assert [tree.task_id for tree in imported(tmp_path)] == [9, 10, 100]


def test_scores_are_divided_by_the_full_score_and_leaves_are_cut_at_the_depth_bound_only_on_request(
    tmp_path: Path,
) -> None:
    write_json(tmp_path / "search_results_7.json", to_json(by_hand({"ab": 0.5, "c": 0.0})))
    for options, reward, done in (
        ((), 0.5, True),
        (("--max-depth", 1), 0.5, False),  # it allows one action more than its number: the second may be cut
        (("--full-score", 2), 0.25, True),
    ):
        [tree] = imported(tmp_path, *options)
        assert (tree.nodes[2].reward, tree.nodes[2].done, tree.nodes[3].done) == (reward, done, True)


def test_a_folder_without_a_tree_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("import-trees", tmp_path, tmp_path / "trees.jsonl", "--env", "corridor") == 2
    assert "contains no search_results_<task>.json; name the output folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_node_that_was_never_visited_is_no_end_of_an_episode() -> None:
    data = to_json(by_hand({"a": 1.0, "b": 0.0}))
    data["children"][1] |= {"is_terminal": False, "visits": 0}
    tree = from_json(data, "x", env="corridor", task_id=1)
    assert [node.done for node in tree.nodes] == [False, True, False]
