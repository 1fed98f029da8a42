"""Curves: stitched across ancestors, smoothed by a centred mean that skips missing values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.logs import (
    Log,
    Point,
    centred_mean,
    curve_rows,
    original_points,
    read_curve,
    read_original,
    smoothed,
    stitch,
)
from tests.support.sentences import refused_with

MAYBE = st.one_of(st.none(), st.floats(-10, 10))


def points(*steps: float, success: float | None = 1.0) -> list[Point]:
    return [Point(step, success, 0.0, None) for step in steps]


def test_a_childs_offset_is_its_parents_plus_limit_over_accumulation() -> None:
    parent = Log(points(1, 2, 3, 4, 5, 6), accumulation=2, limit=4)
    child = Log(points(1, 2, 3), accumulation=1, limit=2)
    grandchild = Log(points(1, 2), accumulation=1)
    assert [point.step for point in stitch([parent, child, grandchild])] == [0.5, 1, 1.5, 2, 3, 4, 5, 6]


def test_an_ancestor_contributes_only_the_steps_before_its_child_starts() -> None:
    parent = Log(points(1, 2, 3, success=0.0), limit=2)
    assert [(p.step, p.success) for p in stitch([parent, Log(points(1, success=1.0))])] == [(1, 0), (2, 0), (3, 1)]


def test_a_child_of_a_whole_run_starts_after_the_runs_last_step() -> None:
    parent = Log(points(1, 2, 3, 4), accumulation=2)
    assert [point.step for point in stitch([Log([]), parent, Log(points(1))])] == [0.5, 1, 1.5, 2, 3]


@given(st.lists(MAYBE, max_size=30), st.integers(0, 6))
def test_the_mean_is_centred_and_skips_missing_values(values: Any, half: int) -> None:
    means = centred_mean(values, 2 * half + 1)
    assert len(means) == len(values)
    for i, mean in enumerate(means):
        known = [v for v in values[max(0, i - half) : i + half + 1] if v is not None]
        assert mean == (math.fsum(known) / len(known) if known else None)
    if half == 0:
        assert means == values


def test_smoothing_does_not_shift_a_jump_in_the_values() -> None:
    """The original's curves lag by one sample."""
    values = [0.0] * 10 + [1.0] * 10
    means = centred_mean(values, 5)
    assert means[9] == pytest.approx(0.4)
    assert means[10] == pytest.approx(0.6)
    for window in (4, 0, -1):
        with pytest.raises(UserError, match=f"^a centred mean needs an odd window, not {window}; set it with --window"):
            centred_mean(values, window)


def test_the_default_window_is_a_point_and_the_49_on_either_side() -> None:
    told = [point.success for point in smoothed([Point(step, float(step == 100), 0.0, None) for step in range(201)])]
    assert [step for step, mean in enumerate(told) if mean] == list(range(51, 150))
    assert told[100] == pytest.approx(1 / 99)


def test_curves_are_read_and_written_as_tables(tmp_path: Path) -> None:
    file = tmp_path / "curves.csv"
    file.write_text("step,success,cost,loss\n1,0.5,-1,\n2,1.0,-2,0.25\n")
    found = read_curve(file)
    assert found == [Point(1, 0.5, -1, None), Point(2, 1, -2, 0.25)]
    rows = curve_rows({"a": smoothed(found, 1)})
    assert rows[0] == {"row": "a", "step": 1.0, "success": 0.5, "cost": -1.0, "loss": ""}
    for cell in ("many", "nan", "1e999"):
        file.write_text(f"step,success,cost,loss\n1,{cell},-1,\n")
        with pytest.raises(UserError, match=r"curves\.csv, line 2: step, success, cost or loss is missing"):
            read_curve(file)
    for content in (b"step,success\xff\n1,1\n", b"step,success,cost,loss\n" + b"1" * 200_000 + b",1,1,1\n"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"curves\.csv is not a CSV file"):
            read_curve(file)
    with pytest.raises(UserError, match="does not exist"):
        read_curve(tmp_path / "none.csv")


def original(folder: Path, steps: int, succ: float, save_steps: int, **setting: object) -> Path:
    """A run in the original's layout: each checkpoint logs the iterations since the previous one, counted from 0."""
    for end in range(save_steps, steps + 1, save_steps):
        place = folder / f"checkpoint-{end}"
        place.mkdir(parents=True)
        rows = [
            {"iter": i, "loss": [0.5 * (i + 1), None], "critic_loss": None, "cost": -succ, "succ": succ, "log": []}
            for i in range(end - save_steps, end)
        ]
        (place / "logs.json").write_text(json.dumps(rows))
    (folder / "setting.yml").write_text("".join(f"{key}: {value}\n" for key, value in setting.items()))
    return folder


def test_curves_of_the_originals_runs_include_their_ancestors(tmp_path: Path) -> None:
    original(tmp_path / "001_rl_finetune", 6, 0.0, 2, gradient_accumulation_steps=2)
    sft = tmp_path / "000_supervised_pretrain/checkpoint-9"
    sft.mkdir(parents=True)
    with (tmp_path / "001_rl_finetune/setting.yml").open("a") as file:
        file.write("load_dir: results/000_supervised_pretrain/checkpoint-9\n")
    child = original(tmp_path / "1002_rl_finetune", 3, 1.0, 3, load_dir="results/001_rl_finetune/checkpoint-4/")
    (child / "checkpoint-4").mkdir()  # killed while writing it
    curve = stitch(read_original(child))
    assert [(point.step, point.success) for point in curve] == [
        (0.5, 0), (1, 0), (1.5, 0), (2, 0), (3, 1), (4, 1), (5, 1),
    ]  # fmt: skip
    assert curve[0].loss == 0.5


@pytest.mark.parametrize(
    ("updates", "loss", "count"),
    [([0.5, 1.5], 1.0, 2), ([None, 1.5], 1.5, 1), ([0.5, None], 0.5, 1), ([None, None], None, 1), (0.25, 0.25, 1)],
)
def test_the_original_s_loss_is_the_mean_over_both_updates(
    tmp_path: Path, updates: object, loss: float | None, count: int
) -> None:
    """With gradient accumulation, often only the replayed episodes complete an optimiser step and have a loss."""
    row = {"iter": 0, "loss": updates, "critic_loss": None, "cost": 1.0, "succ": 0.5, "log": []}
    (tmp_path / "logs.json").write_text(json.dumps([row]))
    assert original_points(tmp_path / "logs.json") == [Point(1, 0.5, 1.0, loss, count)]


def test_a_number_that_overflowed_in_an_original_run_counts_as_not_measured(tmp_path: Path) -> None:
    """The original writes NaN and Infinity to logs.json, since its trainer goes on after an overflow."""
    row = {"iter": 0, "loss": [math.nan, 1.5], "critic_loss": [math.nan, None], "cost": 1.0, "succ": 0.5, "log": []}
    rows = [row, row | {"iter": 1, "loss": [math.nan, None], "cost": math.inf}]
    (tmp_path / "logs.json").write_text(json.dumps(rows))
    assert original_points(tmp_path / "logs.json") == [Point(1, 0.5, 1.0, 1.5), Point(2, 0.5, None, None)]


def test_each_update_counts_once_in_a_smoothed_loss() -> None:
    points = [Point(1, None, None, 1.0, 2), Point(2, None, None, None), Point(3, None, None, 4.0)]
    assert [point.loss for point in smoothed(points, 5)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("loaded", ["results/000_supervised_pretrain/checkpoint-9/", "results/000_supervised_pretrain"])
def test_a_lineage_starts_after_its_supervised_run_whose_folder_may_be_missing(tmp_path: Path, loaded: str) -> None:
    run = original(tmp_path / "001_rl_finetune", 4, 1.0, 2, load_dir=loaded)
    assert [point.step for point in stitch(read_original(run))] == [1, 2, 3, 4]


def test_each_iteration_of_the_original_is_one_point_and_later_checkpoints_take_precedence(tmp_path: Path) -> None:
    run = original(tmp_path / "003_rl_finetune", 1000, 1.0, 100, gradient_accumulation_steps=1)
    assert [point.step for point in stitch(read_original(run))] == list(range(1, 1001))
    again = json.loads((run / "checkpoint-200/logs.json").read_text())
    again[0] |= {"iter": 99, "succ": 0.0}  # the later checkpoint takes precedence
    (run / "checkpoint-200/logs.json").write_text(json.dumps(again))
    curve = stitch(read_original(run))
    assert [point.step for point in curve if point.success == 0] == [100]
    assert len(curve) == 999  # iteration 100 was not logged


def test_invalid_runs_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with refused_with("has no checkpoint-K"):
        read_original(tmp_path)
    run = original(tmp_path / "001_rl_finetune", 2, 1.0, 2, load_dir="results/001_rl_finetune/checkpoint-2")
    with refused_with("cycle"):
        read_original(run)
    run = original(tmp_path / "002_rl_finetune", 2, 1.0, 2, load_dir="somewhere")
    with refused_with("load_dir 'somewhere' is not a checkpoint-K folder"):
        read_original(run)
    run = original(tmp_path / "003_rl_finetune", 2, 1.0, 2, load_dir="results/000_gone/checkpoint-2")
    with refused_with(r"003_rl_finetune/setting\.yml: load_dir .*000_gone.* does not exist"):
        read_original(run)


@pytest.mark.parametrize("steps", [-2, 0, 1.5, "many", [1], True])
def test_an_accumulation_that_is_not_a_positive_integer_is_refused(tmp_path: Path, steps: object) -> None:
    run = original(tmp_path / "001_rl_finetune", 2, 1.0, 2, gradient_accumulation_steps=json.dumps(steps))
    with pytest.raises(UserError, match=r"setting\.yml: gradient_accumulation_steps must be an integer of at least 1"):
        read_original(run)


@pytest.mark.parametrize(
    "fields",
    [{}, {"loss": []}, {"loss": [[]]}, {"cost": "much"}, {"cost": "nan"}, {"iter": 10**400}, {"loss": [1e308, None]}],
)
def test_invalid_rows_of_a_log_are_refused_in_one_sentence(tmp_path: Path, fields: dict[str, Any]) -> None:
    row = {"iter": 0, "loss": [0.5, None], "cost": 1.0, "succ": 0.5} | fields if fields else {"iter": 1}
    (tmp_path / "logs.json").write_text(json.dumps([row]))
    with refused_with(r"logs\.json: not a list of iterations"):
        original_points(tmp_path / "logs.json")
