"""SPIN's training and Reflect-RL's reinforcement learning on an NVIDIA GPU (make test-gpu), compared with a CPU."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.records import Pair
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.methods.reflect_rl.learn import learn
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_job import RLJob
from selfimprove.methods.reflect_rl.rl_policy import example, order, weights_hash
from selfimprove.methods.reflect_rl.rl_run import Run
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merging import full_weights
from selfimprove.training.report import PairReport
from tests.backends.gpu import (
    DEVICE,
    a_gpu,  # noqa: F401
    answers,
    check_close,
    clean_gpu,  # noqa: F401
    identical,
    little_memory,
    make_engine,
    note,
    requests,
)
from tests.methods.reflect_rl.corridor import Corridor
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.backend

Maker = Callable[..., list[Pair]]
LN2 = math.log(2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "model"
    return make_tiny_model(folder, hidden=128, layers=2, heads=2, kv_heads=1, spread=0.08)


# --- SPIN ------------------------------------------------------------------------------------------------------------

PAIRS: dict[str, Any] = {
    "batch_size": 4, "row_tokens": 200, "micro_batch_tokens": 400, "max_length": 300, "lr": 2e-4, "logging_steps": 1,
    "epochs": 2, "optimizer": "adamw",
}  # fmt: skip


def play(model: Path, pairs: list[Pair], folder: Path, **changes: Any) -> PairReport:
    params = PairParams.model_validate({**PAIRS, "device": DEVICE, **changes}, strict=False)
    return finetune_pairs(model, model, pairs, folder / "model", params, scratch=folder / "scratch", seed=3, threads=1)


def test_self_play_in_float32_gives_the_metrics_and_weights_of_the_cpu(
    small: Path, duels: Maker, tmp_path: Path
) -> None:
    here = play(small, duels(14), tmp_path / "here", validation=0.15)
    there = play(small, duels(14), tmp_path / "there", validation=0.15, device="cpu")
    assert here.first["loss"] == pytest.approx(LN2, abs=1e-4)
    assert len(here.curve) == len(there.curve) > 4
    for one, other in zip(here.curve, there.curve, strict=True):
        # Rewards are differences of sums of a hundred log-probabilities.
        assert one == pytest.approx(other, rel=2e-3, abs=2e-3), f"step {one['step']}"
    for one, other in zip(here.evaluations, there.evaluations, strict=True):
        assert one == pytest.approx(other, rel=2e-3, abs=2e-3)
    check_close(tmp_path / "here" / "model", tmp_path / "there" / "model", small, 0.03)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "attention": "segments", "gradient_checkpointing": True},
        {"dtype": "bfloat16", "optimizer": "rmsprop", "lr": 1e-4},
        {"dtype": "bfloat16", "lora": {"rank": 4, "alpha": 8}, "lr": 2e-3},
        {"tf32": True},
    ],
    ids=str,
)
def test_self_play_starts_at_the_loss_of_a_model_against_itself_and_learns(
    small: Path, duels: Maker, tmp_path: Path, changes: dict[str, Any]
) -> None:
    report = play(small, duels(14), tmp_path, **changes)
    curve = [row["loss"] for row in report.curve]
    note("self-play", changes=changes, first=report.first["loss"], drift=report.first["drift"], last=curve[-1])
    assert report.first["loss"] == pytest.approx(LN2, abs=0.1)
    assert curve[-1] < report.first["loss"], curve
    assert all(math.isfinite(value) for row in report.curve for value in row.values())
    merged = full_weights(tmp_path / "model")
    assert len(answers(make_engine(merged, device=DEVICE, dtype="bfloat16"), requests()[:4])) == 4


def test_a_repeated_self_play_scores_no_pair_again_and_ends_near_the_first(
    small: Path, duels: Maker, tmp_path: Path
) -> None:
    first = play(small, duels(14), tmp_path)
    (tmp_path / "model").rename(tmp_path / "first")
    for folder in (tmp_path / "scratch").glob("checkpoints-*"):
        folder.rename(tmp_path / folder.name)
    again = play(small, duels(14), tmp_path)
    assert (first.timing.opponent_scored, again.timing.opponent_scored) == (14, 0)
    assert [row["loss"] for row in again.curve] == pytest.approx([row["loss"] for row in first.curve], rel=1e-3)
    note("self-play twice, float32", identical=identical(tmp_path / "first", tmp_path / "model"))


# --- Reflect-RL ------------------------------------------------------------------------------------------------------

RL: dict[str, Any] = {
    "max_steps": 4, "episodes": 6, "lr": 1e-3, "replay_episodes": 3, "max_tokens": 5, "save_steps": 2,
    "row_tokens": 100, "log_episodes": 6,
}  # fmt: skip


def make_job(model: Path, folder: Path, device: str = DEVICE, /, **changes: Any) -> RLJob:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"engine": "transformers", "slots": 8, "context": 128, "prefill_rows": 4, "prefill_block": 16}
    dtype = changes.get("dtype", "float32")
    engine = TransformersEngineConfig.model_validate({**settings, "device": device, "dtype": dtype})
    return RLJob(
        model_dir=model, reflector_dir=model, out_dir=folder / "model", checkpoints=folder / "checkpoints",
        env=Corridor(), tasks=[0, 1, 2, 4], params=RLParams.model_validate({**RL, "device": device, **changes}),
        policy_engine=engine, reflector_engine=engine, seed=5, threads=1,
    )  # fmt: skip


def rows(job: RLJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.log.read_text().splitlines()]


def metrics(row: dict[str, Any]) -> dict[str, float]:
    """An iteration's losses, those of updates that took place, and its entropy."""
    fresh, replayed = row["loss"]
    found = {"fresh": fresh, "replayed": replayed, "critic": row["critic_loss"], "entropy": row["entropy"]}
    return {name: value for name, value in found.items() if value is not None}


def actions(row: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What the policy read and chose in an iteration's episodes, with the reflections in what it read."""
    return [[(step["prompt"], step["generation"]) for step in one["detail"]] for one in row["log"]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"critic": {"kind": "mlp", "every": 1}, "algorithm": "ppo"},
        {"critic": {"shared": True, "every": 2}, "mask_invalid": True, "gradient_checkpointing": True},
        {"shrink_head": False, "entropy_coef": 0.1, "top_p": 0.95, "schedule": "linear"},
        {"lora": {"rank": 4, "alpha": 8}, "gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_reinforcement_learning_in_float32_takes_the_actions_and_losses_of_the_cpu(
    small: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    jobs = [
        make_job(small, tmp_path / "here", DEVICE, **changes),
        make_job(small, tmp_path / "there", "cpu", **changes),
    ]
    here, there = (learn(job) for job in jobs)
    for one, other in zip(*map(rows, jobs), strict=True):
        assert actions(one) == actions(other), f"iteration {one['iter']} plays otherwise than on the CPU"
        assert metrics(one) == pytest.approx(metrics(other), rel=5e-3, abs=2e-3), f"iteration {one['iter']}"
    assert here.decisions == there.decisions > 0
    assert here.reflector_hash == there.reflector_hash == weights_hash(load_causal_lm(small))
    merged = full_weights(jobs[0].out_dir)
    assert weights_hash(load_causal_lm(merged)) != weights_hash(load_causal_lm(small))


@pytest.mark.parametrize(
    "changes", [{}, {"shrink_head": False}, {"tf32": True}, {"lora": {"rank": 4}, "dtype": "bfloat16"}], ids=str
)
def test_the_engine_plays_with_the_weights_in_training(small: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Log-probabilities of play equal the trainer's before any update, and after some."""
    run = Run(make_job(small, tmp_path, **changes, max_steps=6), 1, None)
    weight = run._models.engine._decoder._weight
    assert weight.device.type == DEVICE
    assert weight.data_ptr() == run._models.policy.model.get_input_embeddings().weight.data_ptr(), (
        "one copy of the weights"
    )
    tolerance = 0.1 if {"dtype", "tf32"} & changes.keys() else 1e-4
    for iteration in range(3):
        with asyncio.Runner() as runner:
            row = run._iterate(iteration, runner)
            assert math.isfinite(row["loss"][0])
            played = runner.run(run._play(iteration + 10, run._schedule[0]))
        some = [step for one in played if one.trajectory for step in one.trajectory.decisions]
        micro = (tuple(range(len(some))),)
        with torch.no_grad():
            values, _ = run._models.policy.evaluate(micro, some, [example(one) for one in some])
        acted = torch.tensor([some[index].logprob for index in order(micro)])
        apart = float((values.cpu() - acted).abs().max())
        note("play and update", changes=changes, iteration=iteration, largest_difference=apart)
        assert apart < tolerance, f"after {iteration + 1} iterations the largest difference is {apart:.2g} nats"


def test_reinforcement_learning_resumes_and_ends_like_an_unbroken_run(small: Path, tmp_path: Path) -> None:
    critic = {"critic": {"kind": "mlp", "every": 3}, "algorithm": "ppo"}
    jobs = {name: make_job(small, tmp_path / name, **critic) for name in ("unbroken", "stopped")}
    learn(jobs["unbroken"])

    class Stopped(Exception):
        pass

    def stop(done: int, *_: Any) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        learn(jobs["stopped"], stop)
    assert learn(jobs["stopped"]).resumed_at == 2
    whole, broken = (rows(job) for job in jobs.values())
    for one, other in zip(whole, broken, strict=True):
        assert actions(one) == actions(other), f"iteration {one['iter']}"
        assert metrics(one) == pytest.approx(metrics(other), rel=1e-3, abs=1e-3), f"iteration {one['iter']}"
    note("resumed reinforcement learning", identical=identical(jobs["unbroken"].out_dir, jobs["stopped"].out_dir))


def test_repeated_reinforcement_learning_takes_the_same_actions(small: Path, tmp_path: Path) -> None:
    jobs = [make_job(small, tmp_path / name) for name in "ab"]
    for job in jobs:
        learn(job)
    one, two = (rows(job) for job in jobs)
    assert list(map(actions, one)) == list(map(actions, two))
    same = identical(jobs[0].out_dir, jobs[1].out_dir)
    note("reinforcement learning twice, float32", weights_identical=same, logs_identical=one == two)


def test_an_update_larger_than_the_gpu_names_the_params_that_need_memory(small: Path, tmp_path: Path) -> None:
    job = make_job(small, tmp_path, episodes=200, micro_batch_tokens=400_000, row_tokens=4000)
    said = r"^rl: the GPU's memory is exhausted \(\d.* lower rl\.micro_batch_tokens \(400000\)"
    with little_memory(256), refused_with(said):
        learn(job)
    assert not job.out_dir.exists()
