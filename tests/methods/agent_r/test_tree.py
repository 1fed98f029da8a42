"""Search trees as stored: what a node keeps of its reply, and files that contain no tree (docs/agent-r.md, A15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_jsonl, write_rows
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.searching import FAR, Cut, grow

STATE = [{"role": m.role, "content": m.content} for m in opening("Do.", "Here.")]


def test_a_node_and_the_conversation_keep_a_reply_s_token_ids_and_that_it_was_cut() -> None:
    """A reply that was cut has no end of turn to train on."""
    tree = grow(FAR, Cut())
    assert {(node.finish, *(node.token_ids or ())) for node in tree.nodes[1:]} == {("length", 7, 8)}
    said = [message for message in tree.conversation(len(tree.nodes) - 1)[4:] if message.role == "assistant"]
    assert {(message.finish, *(message.token_ids or ())) for message in said} == {("length", 7, 8)}


def test_a_stored_reply_that_differs_from_the_generated_text_has_no_token_ids() -> None:
    tree = grow(FAR, Cut(lambda request, index: "Thought 1: So be it.\nAction 1: right"))
    assert {(node.reply, node.token_ids) for node in tree.nodes[1:]} == {("Thought: So be it.\nAction: right", None)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nodes": []}, "field 'nodes': the first node must be the root"),
        ({"nodes": [{"parent": 0}]}, "field 'nodes': the first node must be the root, whose parent is null"),
        ({"nodes": [{}, {}]}, "field 'nodes': node 1 has parent None"),
        ({"nodes": [{"children": [1]}, {"parent": 7}]}, "field 'nodes': node 1 has parent 7"),
        ({"nodes": [{"children": [2]}, {"parent": 2}, {"parent": 0}]}, "field 'nodes': node 1 has parent 2"),
        ({"nodes": [{}, {"parent": 1, "children": [1]}]}, "field 'nodes': node 1 has parent 1"),
        ({"nodes": [{"children": [5]}]}, r"field 'nodes': node 0 has children \[5\], but is the parent of \[\]"),
        ({"nodes": [{"visits": -2}]}, r"field 'nodes\.0\.visits'"),
        ({"nodes": [{"visits": 10**400}]}, r"field 'nodes\.0\.visits'"),
        ({"prompt": STATE[:1]}, "the conversation begins with 1 messages"),
        ({"prompt": [*STATE, STATE[2]]}, "the conversation begins with 5 messages"),
        ({"prompt": [], "nodes": [{"children": [1]}, {"parent": 0}]}, "the conversation begins with 0 messages"),
    ],
)
def test_errors_in_a_malformed_stored_tree_name_file_line_and_field(tmp_path: Path, changes: Any, named: str) -> None:
    row = {"id": "t-1", "env": "t", "task_id": 1, "prompt": STATE, "nodes": [{}], "seed": ""}
    write_rows(tmp_path / "trees.jsonl", [row, {**row, **changes}])
    with pytest.raises(UserError, match=f"trees.jsonl, line 2: {named}"):
        read_jsonl(tmp_path / "trees.jsonl", Tree)
