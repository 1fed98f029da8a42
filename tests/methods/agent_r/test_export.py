"""Export to and import from the original's formats, above all its tree files (docs/agent-r.md, A44)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError
from selfimprove.core.records import (
    Attempt,
    Episode,
    Example,
    Message,
    Turn,
    dump_line,
    read_jsonl,
    read_rows,
    write_jsonl,
    write_rows,
)
from selfimprove.interop.agent_r import app, from_json, to_json
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.selection import ranked_leaves
from selfimprove.methods.agent_r.tree import Node, Tree
from tests.methods.agent_r.searching import FAR, grow, params, said, scripted
from tests.methods.agent_r.trees import by_hand

FIELDS = {
    "visits", "value", "prior", "puct_value", "obs", "llm_response", "depth", "is_terminal", "recent_actions",
    "action", "env_score", "disaster", "state", "children",
}  # fmt: skip


def leaf_paths(tree: Tree) -> list[list[int]]:
    """Every path from the root (node 0) to a terminal node without children, depth first as in the original."""
    paths, stack = [], [[0]]
    while stack:
        path = stack.pop()
        node = tree.nodes[path[-1]]
        if node.terminal and not node.children:
            paths.append(path)
        stack += [[*path, child] for child in reversed(node.children)]
    return paths


def entry(**changes: Any) -> dict:
    """A node as the original writes it."""
    node = {
        "visits": 1, "value": 0.0, "prior": 1, "puct_value": 0.1, "obs": "You see it.", "llm_response": said("look"),
        "depth": 1, "is_terminal": True, "recent_actions": [["look", "You see it."]], "action": "look", "env_score": 0,
        "disaster": False, "children": [],
    }  # fmt: skip
    return node | changes


STATE = [{"role": m.role, "content": m.content} for m in opening("Do.", "Here.")]


def original(*children: dict, **changes: Any) -> dict:
    root = {"llm_response": "ROOT", "action": "ROOT", "obs": "", "depth": 0, "recent_actions": [], "state": STATE}
    return entry(**root, children=list(children)) | changes


def every(node: dict) -> list[dict]:
    return [node, *(below for child in node["children"] for below in every(child))]


def depth_first(tree: Tree, index: int = 0) -> list[int]:
    """The nodes at and below ``index``, in the order of ``every``."""
    return [index, *(below for child in tree.nodes[index].children for below in depth_first(tree, child))]


def test_each_node_has_the_original_s_fields_and_its_own_conversation() -> None:
    tree = grow(FAR, cfg=params(dives=4))
    nodes = every(to_json(tree))
    assert len(nodes) == len(tree.nodes) > 10
    assert (nodes[0]["llm_response"], nodes[0]["action"], nodes[0]["obs"]) == ("ROOT", "ROOT", "")
    for node, index in zip(nodes, depth_first(tree), strict=True):
        assert set(node) == FIELDS
        assert node["prior"] == 1
        assert node["state"] == [{"role": m.role, "content": m.content} for m in tree.conversation(index)]
        done = [[tree.nodes[i].action, tree.nodes[i].observation] for i in tree.path(index)]
        assert node["recent_actions"] == done
        assert node["depth"] == len(done)


def test_puct_value_is_the_node_s_uct_score() -> None:
    tree = grow(FAR, cfg=params(dives=4))
    data = to_json(tree)
    assert data["puct_value"] == data["value"] / data["visits"]  # no bonus at the root
    for parent in every(data):
        for child in parent["children"]:
            n = child["visits"]
            bonus = 0.25 * math.sqrt(math.log(parent["visits"]) / n) if n else 0
            assert child["puct_value"] == pytest.approx((child["value"] / n if n else 0) + bonus)


@given(st.integers(0, 24), st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=30)
def test_trees_round_trip_through_the_original_s_format(task: int, seed: int, dives: int, n_gen: int) -> None:
    tree = grow(task, cfg=params(dives=dives, n_gen=n_gen), seed=seed)
    assert Tree.model_validate_json(dump_line(tree)) == tree  # our own format keeps everything
    data = json.loads(json.dumps(to_json(tree)))
    back = from_json(data, "x.json", env=tree.env, task_id=tree.task_id, max_depth=4)
    assert to_json(back) == data
    assert (back.id, back.prompt, back.status) == (tree.id, tree.prompt, tree.status)

    def seen(some: Tree) -> list[list[Node]]:
        lost: dict[str, Any] = {"parent": None, "children": [], "finish": None, "valid": True}
        nodes = [node.model_copy(update=lost) for node in some.nodes]
        for node in nodes:
            node.done = node.done and (node.depth <= 4 or node.disaster)  # at the bound the format does not record it
        return [[nodes[i] for i in path] for path in leaf_paths(some)]

    assert seen(back) == seen(tree)


@pytest.mark.parametrize("depth", [256, 300])
def test_a_tree_with_very_long_paths_round_trips(depth: int) -> None:
    tree = by_hand({"a" * depth: 1.0, "b": 0.0})
    data = to_json(tree)
    back = from_json(data, "x.json", env=tree.env, task_id=tree.task_id)
    assert to_json(back) == data
    assert max(node.depth for node in back.nodes) == depth


def test_a_tree_whose_paths_are_too_long_for_a_nested_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "trees.jsonl", [by_hand({"a" * 501: 1.0})])
    refused("trees", tmp_path / "trees.jsonl", tmp_path / "out")
    assert "tree corridor-1 has paths of 501 actions, too many for the nested format" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_prior_replies_become_the_root_s_recent_actions() -> None:
    tree = grow(FAR, prior=[said("right"), "Thought 1: It.\nAction 1: take key"])
    data = to_json(tree)
    given_pairs = [["right", "You are in room 1 of 5."], ["take key", "You have the key."]]
    assert data["recent_actions"] == given_pairs
    assert data["children"][0]["recent_actions"][:2] == given_pairs
    assert len(data["state"]) == 8
    assert to_json(from_json(data, "x", env="corridor", task_id=FAR)) == data


def test_leaves_are_listed_depth_first_and_ranked_by_mean_value() -> None:
    data = original(
        entry(value=0.0, obs="a"),
        entry(value=1.5, obs="b", visits=2, children=[entry(value=1.0, obs="c"), entry(value=0.5, obs="d")]),
        entry(obs="e", is_terminal=False, visits=0),  # not terminal, so not a leaf
        entry(value=1.0, obs="f"),
    )
    tree = from_json(data, "x", env="textcraft", task_id=3)
    names = [[tree.nodes[i].observation for i in path] for path in leaf_paths(tree)]
    assert names == [["", "a"], ["", "b", "c"], ["", "b", "d"], ["", "f"]]
    assert [tree.nodes[leaf].observation for leaf in ranked_leaves(tree)] == ["c", "f", "d", "a"]
    assert sorted(path[-1] for path in leaf_paths(tree)) == tree.leaves()


def test_a_terminal_root_is_its_only_leaf() -> None:
    assert leaf_paths(from_json(original(), "x", env="textcraft", task_id=3)) == [[0]]
    assert leaf_paths(from_json(original(is_terminal=False), "x", env="textcraft", task_id=3)) == []
    lost = grow(FAR, scripted("right"), params(n_gen=1, dives=1, max_depth=1))
    assert leaf_paths(lost) == [[0, 1, 2]]


def test_scores_of_the_original_s_scienceworld_trees_are_normalised() -> None:
    data = original(entry(value=60.0, env_score=60), value=60.0)
    tree = from_json(data, "x", env="sciworld", task_id=3, full_score=100)
    assert (tree.root.value, tree.nodes[1].value, tree.nodes[1].reward) == (0.6, 0.6, 0.6)


def test_a_negative_score_is_a_disaster_with_reward_0() -> None:
    data = original(
        entry(env_score=-100, value=0.0, disaster=True), entry(env_score=-100, value=0.0), entry(env_score=80)
    )
    tree = from_json(data, "x", env="sciworld", task_id=3, full_score=100, max_depth=0)
    assert [(node.reward, node.disaster, node.done) for node in tree.nodes[1:]] == [(0, True, True)] * 2 + [
        (0.8, False, False)
    ]


def test_terminal_leaves_within_the_depth_bound_were_ended_by_the_environment() -> None:
    data = original(entry(depth=5), entry(depth=4))
    assert [n.done for n in from_json(data, "x", env="textcraft", task_id=3, max_depth=4).nodes] == [False, False, True]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (original(entry(visits="many")), r"x\.json: field 'children\.0\.visits'"),
        (original(entry(children=None)), r"x\.json: field 'children\.0\.children'"),
        (original(entry(), entry(children=[entry(), entry(obs=1)])), r"field 'children\.1\.children\.1\.obs'"),
        (original(entry(children=[7])), r"x\.json: field 'children\.0\.children\.0': Input should be"),
        ({k: v for k, v in original().items() if k != "state"}, r"x\.json: field 'state'"),
        (original(value=math.nan), r"x\.json: field 'value'"),
        ([], r"x\.json: Input should be"),
        (original(entry(visits=-1)), r"x\.json: field 'children\.0\.visits'"),
        (original(state=STATE + STATE[2:3]), r"x\.json: field 'state': the conversation begins with 5 messages"),
        (original(state=[*STATE[:2], STATE[3], STATE[2]]), r"x\.json: field 'state': after the first message"),
        (original(entry(visits=10**400)), r"x\.json: field 'children\.0\.visits'"),
        (original(entry(env_score=60)), r"x\.json: field 'env_score': 60 exceeds the full score.*--full-score"),
    ],
)
def test_errors_in_a_malformed_tree_name_the_field(data: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        from_json(data, "x.json", env="textcraft", task_id=1)


@pytest.mark.parametrize("field", ["value", "env_score"])
def test_a_score_that_overflows_when_divided_is_refused(field: str) -> None:
    with pytest.raises(UserError, match=r"x\.json: .* too large to be divided by the full score"):
        from_json(original(**{field: -1e308}), "x.json", env="textcraft", task_id=1, full_score=0.5)


@pytest.mark.parametrize("full_score", [math.inf, math.nan, 0.0, -1.0])
def test_a_full_score_that_is_not_a_finite_number_above_0_is_refused(full_score: float) -> None:
    with pytest.raises(UserError, match="set --full-score to a finite number above 0"):
        from_json(original(), "x.json", env="textcraft", task_id=1, full_score=full_score)


def test_two_files_of_one_task_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("7", "07"):
        (tmp_path / f"search_results_{name}.json").write_text(json.dumps(original()))
    refused("import-trees", tmp_path, tmp_path / "trees.jsonl", "--env", "textcraft")
    assert "search_results_07.json and search_results_7.json belong to the same task" in capsys.readouterr().err
    assert not (tmp_path / "trees.jsonl").exists()


def test_two_trees_of_one_task_are_found_without_comparing_all_pairs_of_trees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Task(int):
        compared = 0
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            Task.compared += 1
            return hash(self) == hash(other)

    trees = [by_hand({"a": 1.0}).model_copy(update={"task_id": Task(i)}) for i in (*range(300), 299)]
    monkeypatch.setattr("selfimprove.interop.agent_r.read_jsonl", lambda *_: trees)
    refused("trees", tmp_path / "trees.jsonl", tmp_path / "out")
    assert "task 299 has several trees" in capsys.readouterr().err
    assert Task.compared < 1000


def test_an_environment_s_name_with_a_slip_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name selects the judge's wording. That of a user's own class, which is in no list, is accepted as it is."""
    (tmp_path / "search_results_7.json").write_text(json.dumps(original()))
    for env, told in (
        ("textcarft", "--env: no environment of this package is called 'textcarft'; did you mean 'textcraft'?\n"),
        ("textcraft", ""),
        ("corridor", ""),
    ):
        command("import-trees", tmp_path, tmp_path / "trees.jsonl", "--env", env)
        assert capsys.readouterr().out == told
        assert [tree.env for tree in read_jsonl(tmp_path / "trees.jsonl", Tree)] == [env]


def test_a_tree_blocked_before_its_first_observation_is_not_exported() -> None:
    with pytest.raises(UserError, match="corridor-1 was blocked"):
        to_json(Tree(id="corridor-1", env="corridor", task_id=1, prompt=[], nodes=[Node()], seed="0", status="blocked"))


def call(*arguments: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "selfimprove.interop.agent_r", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_the_command_line_exports_and_imports_and_reports_errors_in_one_line(tmp_path: Path) -> None:
    source, folder, back = tmp_path / "trees.jsonl", tmp_path / "mcts_result", tmp_path / "back.jsonl"
    write_jsonl(source, [grow(FAR), grow(3)])
    assert call("trees", source, folder).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["search_results_3.json", "search_results_8.json"]
    assert call("import-trees", folder, back, "--env", "corridor").returncode == 0
    assert [tree.task_id for tree in read_jsonl(back, Tree)] == [3, 8]
    (folder / "search_results_3.json").write_text("{")
    wrong = call("import-trees", folder, tmp_path / "none.jsonl", "--env", "corridor")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "search_results_3.json is not JSON" in wrong.stderr
    assert not (tmp_path / "none.jsonl").exists()


def command(*words: object) -> None:
    assert ended(*words) in (0, None)


def refused(*words: object) -> None:
    assert ended(*words) == 2


def ended(*words: object) -> object:
    with pytest.raises(SystemExit) as end:
        run(app, [str(word) for word in words])
    return end.value.code


@pytest.mark.parametrize("form", ["xtuner", "openai"])
def test_conversations_round_trip_with_their_loss_flags(tmp_path: Path, form: str) -> None:
    messages = [
        Message(role="user", content="Craft."),
        Message(role="assistant", content="No.", weight=0.0),
        Message(role="user", content="Nothing."),
        Message(role="assistant", content="Yes.", weight=1.0),
    ]
    write_jsonl(tmp_path / "examples.jsonl", [Example(id="e", messages=messages)])
    command("conversations", tmp_path / "examples.jsonl", tmp_path / "rows.jsonl", "--to", form)
    command("import-conversations", tmp_path / "rows.jsonl", tmp_path / "back.jsonl", "--from", form)
    (example,) = read_jsonl(tmp_path / "back.jsonl", Example)
    assert example.messages == messages


def test_a_list_of_conversations_and_nulls_in_it_are_imported(tmp_path: Path) -> None:
    """The original converts to one JSON list; rows that pass through Arrow have null for what is missing."""
    turns = [{"system": None, "input": None, "output": "Hi.", "output_with_loss": None},
             {"system": None, "input": "Go.", "output": "Gone.", "output_with_loss": True}]  # fmt: skip
    said = [{"role": "user", "content": "Go.", "loss": None}, {"role": "assistant", "content": "No.", "loss": None}]
    for form, row, loaded in (
        ("xtuner", {"conversation": turns}, [("", 0), ("Hi.", 0), ("Go.", 0), ("Gone.", 1)]),
        ("openai", {"messages": said}, [("Go.", 0), ("No.", 0)]),
    ):
        (tmp_path / "rows.json").write_text(json.dumps([row], indent=4))
        command("import-conversations", tmp_path / "rows.json", tmp_path / "back.jsonl", "--from", form)
        (example,) = read_jsonl(tmp_path / "back.jsonl", Example)
        assert [(m.content, m.weight) for m in example.messages] == loaded


def test_a_log_can_be_imported_as_examples(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Gone.", "loss": True}]
    write_rows(tmp_path / "log.jsonl", [{"task_num": "7", "revise_log": said, "revise": True}])
    command("import-conversations", tmp_path / "log.jsonl", tmp_path / "back.jsonl", "--from", "log")
    (example,) = read_jsonl(tmp_path / "back.jsonl", Example)
    assert [(m.content, m.weight) for m in example.messages] == [("Go.", 0.0), ("Gone.", 1.0)]
    assert example.source == "7"


def test_whole_and_revised_episodes_are_exported_as_separate_result_rows(tmp_path: Path) -> None:
    def turn(model: Any) -> Turn:
        return Turn(model=model, attempts=[Attempt(text="Action: x", reward=0.5)], chosen=0, observation="so")

    episodes = [
        Episode(id=f"textcraft-{name}", env="textcraft", query="q", gold="", prompt=[], turns=turns, status="unsolved",
                seed="s")
        for name, turns in (("3", [turn("actor")]), ("4-19053354078d711f", [turn("given"), turn("actor")]))
    ]  # fmt: skip
    write_jsonl(tmp_path / "episodes.jsonl", episodes)
    for task, options in ((3, []), (4, ["--revised"])):
        command("results", tmp_path / "episodes.jsonl", tmp_path / "rows.jsonl", "--model", "M", *options)
        ((_, row),) = read_rows(tmp_path / "rows.jsonl")
        assert (row["task_id"], row["model_name"], row["env_score"], row["step_num"]) == (str(task), "M", 0.5, 1)


def test_an_export_without_a_row_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It wrote an empty file, for example with --revised after an evaluation without beginnings."""
    for name, options in (("textcraft-3", ["--revised"]), ("textcraft-3-19053354078d711f", [])):
        episode = Episode(id=name, env="textcraft", query="", gold="", prompt=[], turns=[], status="unsolved", seed="s")
        write_jsonl(tmp_path / "episodes.jsonl", [episode])
        refused("results", tmp_path / "episodes.jsonl", tmp_path / "rows.jsonl", "--model", "M", *options)
    said = capsys.readouterr().err
    assert "contains no episodes from given beginnings; omit --revised" in said
    assert "contains no episodes without a given beginning; add --revised" in said
    blocked = Tree(id="c-1", env="corridor", task_id=1, prompt=[], nodes=[Node()], seed="0", status="blocked")
    write_jsonl(tmp_path / "trees.jsonl", [blocked])
    refused("trees", tmp_path / "trees.jsonl", tmp_path / "rows")
    assert "contains no tree that began" in capsys.readouterr().err
    assert not list(tmp_path.glob("rows*"))


def test_result_rows_take_the_task_and_the_kind_of_episode_from_the_episode_s_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocked(name: str) -> Episode:
        return Episode(id=name, env="textcraft", query="", gold="", prompt=[], turns=[], status="blocked", seed="s")

    names = ["textcraft+webshop-10461", "textcraft+webshop-8-1905335407871112"]
    write_jsonl(tmp_path / "episodes.jsonl", map(blocked, names))
    for task, options in ((10461, []), (8, ["--revised"])):
        command("results", tmp_path / "episodes.jsonl", tmp_path / "rows.jsonl", "--model", "M", *options)
        assert [row["task_id"] for _, row in read_rows(tmp_path / "rows.jsonl")] == [str(task)]
    for wrong in (f"textcraft-{'9' * 5000}", "other"):
        write_jsonl(tmp_path / "episodes.jsonl", [blocked(wrong)])
        refused("results", tmp_path / "episodes.jsonl", tmp_path / "rows.jsonl", "--model", "M")
    assert "episode 'other' is not named <environment>-<task>" in capsys.readouterr().err
