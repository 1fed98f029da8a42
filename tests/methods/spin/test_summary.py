"""The rows of SPIN's table and the points of its plot."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from selfimprove.apps.report.table import results_table
from selfimprove.core.errors import UserError
from selfimprove.core.records import write_jsonl
from selfimprove.methods.spin.metrics import evaluate_metrics, outcomes
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.summary import spin_rows, summarise_spin
from tests.methods.spin.episodes import QUESTION, REPLIES, played
from tests.methods.spin.test_params import section


def test_rows_are_the_warm_start_the_controls_and_every_iteration() -> None:
    rows = spin_rows(SpinParams.model_validate(section()))
    assert list(rows) == ["base", "more_sft", "outcome_dpo", "iter0", "iter1"]
    assert rows["base"] == "SFT on 4 expert trajectories"


def test_differences_are_paired_and_controls_are_plotted_at_the_iteration_that_they_match(tmp_path: Path) -> None:
    spin = SpinParams.model_validate(section())
    wrong = [" t\nAction: finish[Kesby]"]
    for name in spin_rows(spin):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        episodes = [
            played(REPLIES if name == "iter1" or not n else wrong, question=QUESTION.model_copy(update={"id": f"q{n}"}))
            for n in range(4)
        ]
        write_jsonl(folder / "outcomes.jsonl", outcomes(episodes))
        (folder / "metrics.json").write_text(json.dumps(evaluate_metrics(episodes)))
        (folder / "train.json").write_text('{"real_tokens": 10, "steps": 2}')
        told = {"mean": 0.9 if name == "iter0" else 0.6, "se": 0.03 if name == "iter0" else 0.04, "n": 100}
        (folder / "convert.json").write_text(json.dumps({"told_apart": told}))
    summary = summarise_spin(spin, tmp_path)
    assert (summary["last"], summary["last_minus"]["base"]["em"]["mean"]) == ("iter1", 0.75)
    assert summary["last_minus"]["base"]["em"]["n"] == 4
    points = {(point["row"], point["iterations"]): point["em"] for point in summary["curve"]["points"]}
    assert points == {
        ("SPIN", 0): 0.25, ("more_sft", 2): 0.25, ("outcome_dpo", 2): 0.25, ("SPIN", 1): 0.25, ("SPIN", 2): 1.0,
    }  # fmt: skip
    # iter0 trains on episodes of base, iter1 on episodes of iter0
    told_apart = {name: row["metrics"].get("told_apart", {}).get("mean") for name, row in summary["rows"].items()}
    assert told_apart == {"base": 0.9, "more_sft": None, "outcome_dpo": None, "iter0": 0.6, "iter1": None}
    assert summary["rows"]["iter1"]["metrics"]["told_apart_fall"] == {
        "mean": pytest.approx(0.3), "se": pytest.approx(0.05), "n": 100,
    }  # fmt: skip
    for file, said in (
        ("iter1/metrics.json", "has no 'em'"),
        ("iter1/train.json", "field 'real_tokens' must be a number"),
        ("iter1/convert.json", "has no 'told_apart'"),
    ):
        whole = (tmp_path / file).read_text()
        (tmp_path / file).write_text("{}")
        with pytest.raises(UserError, match=said):
            summarise_spin(spin, tmp_path)
        (tmp_path / file).write_text(whole)
    (tmp_path / "iter1/generate.json").write_text('{"blocked": "some"}')
    with pytest.raises(UserError, match=r"generate\.json has a count that is not a number"):
        summarise_spin(spin, tmp_path)
    shown = io.StringIO()
    Console(file=shown, width=200).print(results_table("spin", summary))
    assert "told apart" in shown.getvalue()
