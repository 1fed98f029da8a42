"""A training's settings: its own, and beneath them what its method's trainings share."""

from __future__ import annotations

from typing import Any

from selfimprove.core.overlay import spell_out

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


def test_a_training_has_what_is_shared_and_its_own_settings_count_more() -> None:
    full = spell_out(SECTION, TAKERS)
    assert full["sft"] == SECTION["train"] | {"lr": 1e-3}
    assert full["iterations"]["iter1"]["finetune"] == SECTION["train"] | {"beta": 0.1, "batch_size": 8}


def test_of_two_shared_settings_the_later_counts() -> None:
    assert spell_out(SECTION, TAKERS)["iterations"]["iter2"]["finetune"]["batch_size"] == 4


def test_a_launcher_of_another_kind_takes_nothing_from_the_shared_one() -> None:
    own = spell_out(SECTION, TAKERS)["iterations"]["iter2"]["finetune"]
    assert own["launcher"] == {"kind": "single"}
    assert own["betas"] == [0.9, 0.9]


def test_what_is_missing_stays_missing_so_that_the_schema_names_it() -> None:
    assert spell_out(SECTION, TAKERS)["iterations"]["iter3"] == {"init": "iter2"}


def test_what_may_be_missing_takes_all_that_is_shared() -> None:
    full = spell_out(SECTION, {"iterations.*.finetune?": ("pairs",)})
    assert full["iterations"]["iter3"]["finetune"] == SECTION["pairs"]


def test_the_section_itself_is_not_changed_and_a_second_time_changes_nothing_more() -> None:
    once = spell_out(SECTION, TAKERS)
    assert SECTION["sft"] == {"lr": 1e-3}
    assert spell_out(once, TAKERS) == once


def test_a_section_of_another_shape_is_left_to_the_schema() -> None:
    for faulty in ({"train": 3, "sft": {"lr": 1}}, {"train": {"lr": 2}, "sft": [1]}, {"iterations": 4}, {}):
        assert spell_out(faulty, TAKERS) == faulty
