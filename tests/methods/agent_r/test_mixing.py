"""Mixing revision trajectories, good ones and general chats (docs/agent-r.md, A25)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, write_rows
from selfimprove.methods.agent_r.mixing import GENERAL_OFF, mixed, read_chats
from selfimprove.methods.agent_r.params import Mix
from tests.methods.agent_r.test_convert import PATHS, TREE, made
from tests.methods.agent_r.trees import by_hand


def test_mix_weights_repeat_examples_and_draw_a_fraction_of_them() -> None:
    trees = [by_hand(PATHS, tree_id=f"corridor-{i}") for i in range(10)]  # 30 pairs, 20 good leaves
    converted = made(trees, mix={"revision": 2.5, "good": 0.25})
    counts = Counter(example.source for example in converted.own if example.id.startswith("revision"))
    assert len(counts) == 30
    assert Counter(counts.values()) == {2: 15, 3: 15}
    assert converted.stats["good_examples"] == 5
    assert len({example.source for example in converted.own if example.id.startswith("good")}) == 5
    assert len({example.id for example in converted.examples}) == len(converted.examples) == 80
    again = made(trees, mix={"revision": 2.5, "good": 0.25}, seed=1)
    assert {e.source for e in again.own if e.id.startswith("good")} != {
        e.source for e in converted.own if e.id.startswith("good")
    }


def chats(folder: Path, count: int) -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": f"Hello {i}"}]}
        for i in range(count)
    ]
    write_rows(folder / "chats.jsonl", rows)
    return str(folder / "chats.jsonl")


def test_general_chats_are_added_in_proportion_to_the_agent_s_data(tmp_path: Path) -> None:
    trees = [by_hand(PATHS, tree_id=f"corridor-{i}") for i in range(10)]
    converted = made(trees, mix={"general": 0.2, "general_file": chats(tmp_path, 7)})
    general = [example for example in converted.examples if example.id.startswith("general")]
    assert len(general) == 10  # of 50: one for every five
    assert max(Counter(example.messages[0].content for example in general).values()) == 2  # 7 chats, then 3 again
    assert all([m.weight for m in example.messages] == [0.0, 1.0] for example in general)
    assert converted.warnings == []
    some = made(trees, mix={"general": 0.2, "general_file": chats(tmp_path, 50)}).examples
    drawn = {example.messages[0].content for example in some if example.id.startswith("general")}
    assert len(drawn) == 10
    assert drawn != {f"Hi {i}" for i in range(10)}  # a random part of the file, not its beginning


def test_chats_may_be_in_sharegpt_s_format_and_have_other_keys(tmp_path: Path) -> None:
    said = [{"from": "system", "value": "Be."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    plain = [{"role": "user", "content": "Hi", "name": "Ann"}, {"role": "assistant", "content": "Hello", "loss": False}]
    write_rows(tmp_path / "c.jsonl", [{"id": "x", "conversations": said}, {"id": 1, "messages": plain}])
    first, second = read_chats(tmp_path / "c.jsonl")
    assert (first.source, second.source) == ("c.jsonl:1", "c.jsonl:2")
    asked = [("user", "Hi", 0.0), ("assistant", "Hello", 1.0)]
    assert [(m.role, m.content, m.weight) for m in first.messages] == [("system", "Be.", 0.0), *asked]
    assert [(m.role, m.content, m.weight) for m in second.messages] == asked


def test_chats_may_be_a_json_list_as_sharegpt_is_published(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    said = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    file.write_text(json.dumps([{"id": "a_0", "conversations": said}, {"id": "b_0", "conversations": []}], indent=1))
    with pytest.raises(UserError, match=r"sharegpt\.json, item 1: field 'messages'"):
        read_chats(file)
    file.write_text(json.dumps([{"id": name, "conversations": said} for name in ("a_0", "b_0")], indent=1))
    both = read_chats(file)
    assert [chat.source for chat in both] == ["sharegpt.json:0", "sharegpt.json:1"]
    assert [(m.role, m.content, m.weight) for m in both[1].messages] == [("user", "Hi", 0), ("assistant", "Hello", 1)]


def test_without_general_chats_there_is_a_warning() -> None:
    assert made([TREE]).warnings == [GENERAL_OFF]
    assert made([TREE]).stats["general_examples"] == 0


def test_a_missing_or_malformed_file_of_chats_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"convert\.mix\.general_file is not set"):
        made([TREE], mix={"general": 0.2})
    with pytest.raises(UserError, match=r"gone\.jsonl does not exist"):
        made([TREE], mix={"general": 0.2, "general_file": str(tmp_path / "gone.jsonl")})
    for row, said in (
        ({"messages": [{"role": "robot", "content": "Hi"}]}, r"line 1: field 'messages\.0\.role'"),
        ({"messages": "Hi"}, r"line 1: field 'messages'"),
        ({"conversations": ["Hi"]}, r"line 1: field 'messages\.0'"),
        ({"messages": [{"role": "user", "content": "Hi"}, "Hello"]}, r"line 1: field 'messages\.1'"),
        ({"messages": [{"role": "user"}]}, r"line 1: field 'messages\.0\.content'"),
        ({"conversations": [{"from": "human"}]}, r"line 1: field 'messages\.0\.content'"),
        ({"conversations": [{"from": "robot", "value": "Hi"}]}, r"line 1: field 'messages\.0\.role'"),
        ({"text": "Hi"}, r"line 1: field 'messages'"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, r"line 1: no assistant message to train on"),
    ):
        write_rows(tmp_path / "bad.jsonl", [row])
        with pytest.raises(UserError, match=said):
            made([TREE], mix={"general": 0.2, "general_file": str(tmp_path / "bad.jsonl")})


def test_a_mix_rounds_to_the_nearest_number_of_examples() -> None:
    trees = [by_hand(PATHS, tree_id=f"corridor-{i}") for i in range(10)]  # 20 good leaves
    assert made(trees, mix={"good": 0.28}).stats["good_examples"] == 6  # of 5.6


def test_general_chats_are_in_proportion_to_the_agent_s_data_without_the_warm_start(tmp_path: Path) -> None:
    agent = [Example(id=str(i), messages=[], source="") for i in range(10)]
    mix = Mix(general=0.5, general_file=chats(tmp_path, 20), warm_start=1.0)
    kinds = mixed(agent, [], mix, 0, agent)
    assert (len(kinds["warm_start"]), len(kinds["general"])) == (10, 5)
