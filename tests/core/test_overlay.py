"""The settings of a training: its own, which override those that its method's trainings share."""

from __future__ import annotations

from typing import Any

from selfimprove.core.overlay import mappings, merge, places, spell_out, texts

SECTION: dict[str, Any] = {
    "train": {"batch_size": 16, "betas": [0.9, 0.98], "launcher": {"kind": "fork", "processes": 2}},
    "pairs": {"batch_size": 4, "beta": 0.1},
    "sft": {"lr": 1e-3},
    "iterations": {
        "iter1": {"init": "base", "finetune": {"batch_size": 8}},
        "iter2": {"init": "iter1", "finetune": {"betas": [0.9, 0.9], "launcher": {"kind": "single"}}},
        "iter3": {"init": "iter2"},
    },
}
TAKERS = {"sft": ("train",), "iterations.*.finetune": ("train", "pairs"), "controls.*.finetune": ("train",)}


def test_a_trainings_own_settings_override_the_shared_ones() -> None:
    full = spell_out(SECTION, TAKERS)
    assert full["sft"] == SECTION["train"] | {"lr": 1e-3}
    assert full["iterations"]["iter1"]["finetune"] == SECTION["train"] | {"beta": 0.1, "batch_size": 8}


def test_later_shared_settings_override_earlier_ones() -> None:
    assert spell_out(SECTION, TAKERS)["iterations"]["iter2"]["finetune"]["batch_size"] == 4


def test_a_launcher_of_another_kind_replaces_the_shared_one_as_a_whole() -> None:
    own = spell_out(SECTION, TAKERS)["iterations"]["iter2"]["finetune"]
    assert own["launcher"] == {"kind": "single"}
    assert own["betas"] == [0.9, 0.9]


def test_a_missing_training_stays_missing_for_the_schema_to_report() -> None:
    assert spell_out(SECTION, TAKERS)["iterations"]["iter3"] == {"init": "iter2"}


def test_an_absent_optional_training_gets_all_shared_settings() -> None:
    full = spell_out(SECTION, {"iterations.*.finetune?": ("pairs",)})
    assert full["iterations"]["iter3"]["finetune"] == SECTION["pairs"]


def test_spelling_out_leaves_the_section_unchanged_and_is_idempotent() -> None:
    once = spell_out(SECTION, TAKERS)
    assert SECTION["sft"] == {"lr": 1e-3}
    assert spell_out(once, TAKERS) == once


def test_a_malformed_section_is_left_to_the_schema() -> None:
    for faulty in ({"train": 3, "sft": {"lr": 1}}, {"train": {"lr": 2}, "sft": [1]}, {"iterations": 4}, {}):
        assert spell_out(faulty, TAKERS) == faulty


def test_mappings_are_merged_and_null_removes_a_mapping_but_is_a_value_elsewhere() -> None:
    under: dict[str, Any] = {
        "engine": {"engine": "vllm", "slots": 4}, "rows": {"a": {"x": 1}, "b": {"x": 2}}, "one": {"x": 1}, "two": 3
    }  # fmt: skip
    merge(under, {"engine": {"engine": "vllm", "context": 5}, "rows": {"b": None}, "one": 7, "two": None, "new": None})
    assert under == {
        "engine": {"engine": "vllm", "slots": 4, "context": 5}, "rows": {"a": {"x": 1}}, "one": 7, "two": None,
        "new": None,
    }  # fmt: skip


def test_places_are_found_by_name_by_any_name_and_by_the_index_in_a_list() -> None:
    node = {"a": {"x": 1}, "b": [{"x": 2}, {"y": "3"}]}
    assert list(places(node, ["a", "x"])) == [(("a", "x"), 1)]
    assert list(places(node, ["b", "*", "x"])) == [(("b", "0", "x"), 2)]
    assert list(places(node, ["b", "1", "*"])) == [(("b", "1", "y"), "3")]
    assert [path for path, _ in mappings(node)] == [(), ("a",), ("b", "0"), ("b", "1")]
    assert list(texts([node, "z"], without=("a",))) == ["3", "z"]
