"""The summary: every row, paired differences to Reflect-RL, and stitched, smoothed and plotted curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfimprove.apps.report.table import draw, results_table
from selfimprove.core.outcomes import Outcome
from selfimprove.core.records import mean_and_error, write_jsonl
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.summary import curves, reflect_rl_rows, summarise_reflect_rl

ENGINE = {"engine": "transformers"}
PARAMS = ReflectRLParams.model_validate(
    {
        "env": {"name": "taxi"},
        "engines": {"policy": ENGINE, "reflector": ENGINE, "teacher": {"engine": "scripted"}},
        "generate": {},
        "models": {
            "reflector": {"init": "start", "data": "sft_reflection", "match": "none"},
            "policy": {"init": "start", "data": "sft_policy", "match": "none"},
            "more_sft": {"init": "policy", "data": "sft_policy", "match": "reflect_rl"},
        },
        "iterations": {
            "reflect_rl": {"init": "policy", "reflector": "reflector"},
            "longer": {"init": "reflect_rl", "reflector": "reflector"},
        },
        "rows": {name: {"reflector": "reflector"} for name in ("policy", "more_sft", "reflect_rl", "longer")},
        "agents": {"chance": {"kind": "random"}},
        "report": {"window": 3},
    }
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The stages' outputs for every row; each row solves one more task than the previous one."""
    for better, name in enumerate(reflect_rl_rows(PARAMS)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        wins = [float(task < better) for task in range(6)]
        rows = [Outcome(id=f"taxi-{i}", values={"success": win, "cost": 1 - win}) for i, win in enumerate(wins)]
        write_jsonl(folder / "outcomes.jsonl", rows)
        metrics = {key: mean_and_error(row.values[key] for row in rows) for key in ("success", "cost")}
        metrics |= {"steps": mean_and_error([7.0]), "invalid": mean_and_error([0.0]), "levels": {"full": {}}}  # type: ignore[dict-item]
        (folder / "metrics.json").write_text(json.dumps(metrics))
        trained = {"real_tokens": 1000, "iterations" if name in PARAMS.iterations else "steps": 4}
        if name != "chance":
            (folder / "train.json").write_text(json.dumps(trained))
        if name in PARAMS.iterations:
            lines = "".join(f"{i},{i / 10},{-i},{'' if i == 2 else i}\n" for i in range(1, 5))
            (folder / "curves.csv").write_text("step,success,cost,loss\n" + lines)
    return tmp_path


def test_every_row_has_paired_differences_to_reflect_rl(results: Path) -> None:
    summary = summarise_reflect_rl(PARAMS, results)
    assert summary["order"] == ["chance", "policy", "more_sft", "reflect_rl", "longer"]
    assert summary["last"] == "reflect_rl"
    assert summary["rows"]["policy"]["what"] == "SFT only"
    gains = {row: metrics["success"]["mean"] for row, metrics in summary["last_minus"].items()}
    assert gains == pytest.approx({"chance": 3 / 6, "policy": 2 / 6, "more_sft": 1 / 6, "longer": -1 / 6})
    assert summary["rows"]["chance"]["training_tokens"] == 0
    assert summary["rows"]["reflect_rl"]["training_steps"] == 4
    assert json.loads(json.dumps(summary)) == summary
    assert results_table("reflect_rl", summary).row_count == 5


def test_a_runs_curve_continues_its_parents(results: Path) -> None:
    found = curves(PARAMS, results)
    assert [point.step for point in found["reflect_rl"]] == [1, 2, 3, 4]
    assert [point.step for point in found["longer"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    first = found["reflect_rl"]
    assert first[1].success == pytest.approx(0.2)
    assert first[1].loss == pytest.approx(2.0)  # mean of 1 and 3: a missing value is not 0
    assert first[0].cost == pytest.approx(-1.5)


def test_steps_count_updates_when_gradients_are_accumulated(results: Path) -> None:
    told = PARAMS.model_dump(mode="json")
    told["iterations"]["reflect_rl"]["rl"]["gradient_accumulation_steps"] = 2
    found = curves(ReflectRLParams.model_validate(told), results)
    assert [point.step for point in found["reflect_rl"]] == [0.5, 1, 1.5, 2]
    assert [point.step for point in found["longer"]] == [0.5, 1, 1.5, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("window", "note"),
    [
        (1, ""),
        (3, "each point: mean over 3 steps"),
        (5, "each point: mean over at most 5 steps"),  # of the run of four steps, of whose points none is over five
        (99, "each point: mean over at most 8 steps"),
    ],
)
def test_the_curves_say_over_how_many_steps_a_point_is_the_mean(results: Path, window: int, note: str) -> None:
    told = PARAMS.model_dump(mode="json") | {"report": {"window": window}}
    summary = summarise_reflect_rl(ReflectRLParams.model_validate(told), results)
    assert {curve["note"] for curve in summary["curves"]} == {note}


def test_the_report_plots_three_curves_and_the_rows(results: Path, tmp_path: Path) -> None:
    summary = summarise_reflect_rl(PARAMS, results)
    draw({"reflect_rl": summary}, tmp_path / "report")
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    curves = [f"reflect_rl-{name}-over-RL-steps.png" for name in ("cost", "loss", "success")]
    assert names == sorted([*curves, "reflect_rl-rows.png"])
