"""The first loss is that of a model against itself, up to rounding (docs/spin.md, S36)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.methods.spin.encode import encode_pairs
from selfimprove.methods.spin.pair_trainer import PairJob, check_first
from tests.methods.spin.test_pair_trainer import LN2, Maker, params, run


@pytest.mark.parametrize(
    ("changes", "first"),
    [({}, LN2), ({"loss": "hinge"}, 1.0), ({"beta": 5.0}, LN2), ({"average": True}, LN2), ({"sft_weight": 2.0}, LN2)],
    ids=str,
)
def test_the_first_loss_is_that_of_a_model_against_itself_and_all_rewards_are_zero(
    tiny: Path, duels: Maker, tmp_path: Path, changes: dict[str, Any], first: float
) -> None:
    report = run(tiny, duels(8), tmp_path, params(epochs=1, **changes))
    rounding = 1e-4 * changes.get("beta", 0.1)
    loss = report.first["loss"] - changes.get("sft_weight", 0.0) * report.first["nll/real"]
    assert loss == pytest.approx(first, abs=rounding)
    for name in ("rewards/real", "rewards/generated", "rewards/margins", "drift"):
        assert report.first[name] == pytest.approx(0.0, abs=rounding)
    assert report.first["rewards/accuracies"] == 0.0


def test_an_unexpected_first_loss_stops_the_run(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    pairs = duels(8)
    run(tiny, pairs, tmp_path, params())
    shutil.rmtree(tmp_path / "model")
    [file] = (tmp_path / "scratch" / "opponent").glob("*/0.jsonl")
    with Journal(file) as journal:
        scores = {pair.key: journal[pair.key] for pair in encode_pairs(pairs, ChatFormat.load(tiny), params())[0]}
    file.unlink()
    with Journal(file) as journal:
        for key, (real, generated) in scores.items():
            journal.add(key, [real - 9, generated])
    with pytest.raises(
        UserError,
        match=r"^the first loss is 0\.\d{4} with rewards up to 0.9\d+, but a model against itself gives 0.6931 and 0",
    ):
        run(tiny, pairs, tmp_path, params(lr=2e-3))
    assert not (tmp_path / "model").exists()
    assert not list((tmp_path / "scratch").glob("*/checkpoint-*"))


@pytest.mark.parametrize("coarse", [{"dtype": "bfloat16"}, {"tf32": True, "device": "cuda"}], ids=str)
@pytest.mark.parametrize(
    ("loss", "reward", "fits"),
    [(0.6931, 0.0, True), (0.70, 0.01, True), (0.6931, 0.1, False), (0.8, 0.0, False), (1.6, 0.0, False)],
)
def test_in_bfloat16_and_tf32_the_first_loss_may_deviate_only_by_rounding(
    tmp_path: Path, loss: float, reward: float, fits: bool, coarse: dict[str, Any]
) -> None:
    job = PairJob(
        model_dir=tmp_path, out_dir=tmp_path, checkpoints=tmp_path, params=params(**coarse, beta=0.1), seed=1,
        threads=1, opponent_dir=tmp_path, opponent="it", scores=tmp_path,
    )  # fmt: skip
    metrics = {"loss": loss, "nll/real": 1.0, "rewards/real": reward, "rewards/generated": 0.0, "drift": 1e-3}
    if fits:
        check_first(metrics, 500, 64, job)
        with pytest.raises(UserError, match="does not score the pairs as the opponent did"):
            check_first({**metrics, "drift": 5e-3}, 500, 64, job)
    else:
        with pytest.raises(UserError, match="does not score the pairs as the opponent did"):
            check_first(metrics, 500, 64, job)


def test_the_first_loss_of_averaged_scores_may_deviate_only_by_the_rounding_of_a_token(tmp_path: Path) -> None:
    job = PairJob(
        model_dir=tmp_path, out_dir=tmp_path, checkpoints=tmp_path, params=params(average=True), seed=1, threads=1,
        opponent_dir=tmp_path, opponent="it", scores=tmp_path,
    )  # fmt: skip
    metrics = {"loss": LN2, "nll/real": 1.0, "rewards/real": 1e-6, "rewards/generated": 0.0, "drift": 1e-6}
    check_first(metrics, 500, 64, job)
    with pytest.raises(UserError, match="does not score the pairs as the opponent did"):
        check_first({**metrics, "rewards/real": 1e-4}, 500, 64, job)
