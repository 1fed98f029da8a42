"""Self-play training end to end on a tiny model: loss, metrics, schedules, launchers (docs/spin.md, S32 to S38)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.core.records import Message, Pair
from selfimprove.methods.spin import opponent
from selfimprove.methods.spin.encode import EncodedPair, encode_pairs, lengths_of, side_rows
from selfimprove.methods.spin.objective import METRICS
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.pair_trainer import PairJob, PairTrainer
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import join
from selfimprove.training.loading import load_base, load_model
from selfimprove.training.packing import make_plan
from selfimprove.training.report import PairReport
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model, weights

Maker = Callable[..., list[Pair]]

PARAMS: dict[str, Any] = {
    "batch_size": 4, "row_tokens": 200, "micro_batch_tokens": 400, "max_length": 300, "lr": 1e-3, "logging_steps": 1,
    "epochs": 2, "optimizer": "adamw",
}  # fmt: skip
LN2 = math.log(2)


def params(**changes: Any) -> PairParams:
    return PairParams.model_validate({**PARAMS, **changes}, strict=False)


def run(tiny: Path, pairs: list[Pair], folder: Path, cfg: PairParams, **more: Any) -> PairReport:
    options = {"scratch": folder / "scratch", "seed": 3, "threads": 1, **more}
    return finetune_pairs(tiny, tiny, pairs, folder / "model", cfg, **options)


def trainer_for(model_dir: Path, start: Path, pairs: list[EncodedPair], folder: Path, cfg: PairParams) -> PairTrainer:
    """A trainer before its first step, with ``model_dir`` as the policy and ``start`` as the opponent."""
    job = PairJob(
        model_dir=model_dir, opponent_dir=start, opponent="", out_dir=folder / "out", checkpoints=folder / "c",
        scores=folder, params=cfg, seed=3, threads=1,
    )  # fmt: skip
    scores = opponent.scores_folder(job, start.name, folder)
    opponent.score(job, start, scores, pairs)
    plan = make_plan(
        lengths_of(pairs), batch_size=len(pairs), row_tokens=cfg.row_tokens,
        micro_batch_tokens=cfg.micro_batch_tokens, seed=3,
    )  # fmt: skip
    model, _ = load_model(model_dir, cfg, 3, dropout=False)
    trainer = PairTrainer(model, join(job), job, pairs, plan, None)
    trainer.read_opponent(scores)
    return trainer


def as_published(model: Any, reference: Any, pairs: list[EncodedPair], cfg: PairParams) -> tuple[torch.Tensor, ...]:
    """Loss and mean metrics as the original computes them: both sides in one right-padded batch, labels of -100.

    Except the logits: the original's mean also includes those of prompt, observations and padding.
    """

    def scores(network: Any, sides: list[EncodedExample]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(side.ids) for side in sides)
        ids = torch.zeros(len(sides), width, dtype=torch.long)
        labels = torch.full((len(sides), width), -100)
        mask = torch.zeros(len(sides), width, dtype=torch.long)
        for row, side in enumerate(sides):
            length = len(side.ids)
            ids[row, :length], mask[row, :length] = torch.tensor(side.ids), 1
            learnt = torch.tensor(side.token_weights) > 0
            labels[row, :length] = torch.where(learnt, ids[row, :length], -100)
        logits = network(ids, attention_mask=mask).logits[:, :-1]
        labels = labels[:, 1:]
        learnt = labels != -100
        values = logits.float().log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
        total = (values * learnt).sum(1)
        return total / learnt.sum(1) if cfg.average else total, (logits.mean(-1) * learnt).sum(1) / learnt.sum(1)

    sides = [one.real for one in pairs] + [one.generated for one in pairs]
    own, logits = scores(model, sides)
    with torch.no_grad():
        theirs, _ = scores(reference, sides)
    real, generated = own.chunk(2)
    real_ratio, generated_ratio = (own - theirs).chunk(2)
    h = real - generated if cfg.reference_free else real_ratio - generated_ratio
    losses = -logsigmoid(cfg.beta * h) if cfg.loss == "sigmoid" else torch.relu(1 - cfg.beta * h)
    rewards = cfg.beta * real_ratio.detach(), cfg.beta * generated_ratio.detach()
    means = [
        *rewards, rewards[0] - rewards[1], (rewards[0] > rewards[1]).float(), real, generated, *logits.chunk(2),
    ]  # fmt: skip
    return losses.mean(), *(column.mean() for column in means)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "hinge", "beta": 0.01},
        {"reference_free": True},
        {"average": True, "beta": 5.0},
        {"row_tokens": 1},
        {"attention": "segments", "beta": 5.0},
    ],
    ids=str,
)
def test_loss_gradients_and_metrics_match_the_published_computation(
    tiny: Path, duels: Maker, tmp_path: Path, changes: dict[str, Any]
) -> None:
    cfg = params(**changes)
    policy = make_tiny_model(tmp_path / "policy", hidden=32, spread=0.17, seed=4)
    pairs, _ = encode_pairs(duels(7), ChatFormat.load(tiny), cfg)
    trainer = trainer_for(policy, tiny, pairs, tmp_path, cfg)
    metrics = torch.zeros(len(METRICS))
    micros = trainer.micro_batches(0)
    assert len(micros) > 1
    assert any(len(micro["pairs"]) > 1 for micro in micros) or cfg.row_tokens == 1
    for micro in micros:
        loss, shares = trainer.micro_loss(trainer.model, micro)  # type: ignore[arg-type]
        loss.backward()
        metrics += shares
    model, reference = load_base(policy, params())[0], load_base(tiny, params())[0]
    expected = as_published(model, reference, pairs, cfg)
    expected[0].backward()
    assert METRICS[: len(expected)] == (
        "loss", "rewards/real", "rewards/generated", "rewards/margins", "rewards/accuracies", "logps/real",
        "logps/generated", "logits/real", "logits/generated",
    )  # fmt: skip
    assert metrics[: len(expected)].tolist() == pytest.approx([one.item() for one in expected], rel=1e-5, abs=1e-5)
    for mine, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):  # type: ignore[union-attr]
        assert theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5 * float(theirs.grad.abs().max()))


def test_pairs_of_identical_sides_train_the_model_only_through_the_sft_term(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    same = [pair.model_copy(update={"generated": pair.real}) for pair in duels(8)]
    report = run(tiny, same, tmp_path / "same", params(optimizer="rmsprop", lr=1e-2))
    assert report.counters.identical == 8
    assert report.curve[-1]["loss"] == pytest.approx(LN2, abs=1e-6)
    before, after = weights(tiny), weights(tmp_path / "same" / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    run(tiny, same, tmp_path / "sft", params(sft_weight=1.0))
    moved = weights(tmp_path / "sft" / "model")
    assert any(not torch.equal(before[name], moved[name]) for name in before)


def test_training_separates_the_sides_of_held_out_pairs(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    report = run(tiny, duels(24), tmp_path, params(epochs=4, validation=0.25, logging_steps=3))
    assert report.held_out == 6
    assert report.pairs == 4 * 18
    assert [row["step"] for row in report.evaluations] == [5, 10, 15, 20]  # ceil(18 / 4) steps per epoch
    assert set(report.evaluations[0]) == {"step", *(f"eval_{name}" for name in METRICS)}
    last = report.evaluations[-1]
    assert last["eval_loss"] < 0.5 * LN2
    assert last["eval_rewards/accuracies"] == 1.0
    assert last["eval_rewards/margins"] == pytest.approx(last["eval_rewards/real"] - last["eval_rewards/generated"])
    assert [row["step"] for row in report.curve] == [3, 6, 9, 12, 15, 18, 20]
    assert set(report.curve[0]) == {"step", *METRICS}


def test_every_epoch_ends_with_its_own_step_and_a_tenth_of_the_steps_is_warm_up(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    report = run(tiny, duels(9), tmp_path, params(epochs=3))
    assert (report.steps, report.pairs) == (3 * math.ceil(9 / 4), 27)
    cfg = PairParams()
    assert (cfg.optimizer, cfg.schedule, cfg.warmup_ratio, cfg.lr, cfg.beta) == ("rmsprop", "linear", 0.1, 5e-7, 0.1)
    assert (cfg.batch_size, cfg.epochs, cfg.weight_decay, cfg.max_length, cfg.sft_weight) == (64, 2.0, 0.0, 2048, 0.0)
    job = PairJob(
        model_dir=tiny, opponent_dir=tiny, opponent="", out_dir=tmp_path, checkpoints=tmp_path, scores=tmp_path,
        params=cfg, seed=3, threads=1,
    )  # fmt: skip
    assert [join(job).get_warmup_steps(total) for total in (1, 10, 11, 100)] == [1, 1, 2, 10]


@pytest.fixture(scope="module")
def plain_curve(tiny: Path, duels: Maker, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return run(tiny, duels(8), tmp_path_factory.mktemp("plain"), params()).curve


KNOBS: list[dict[str, Any]] = [
    {"lr": 2e-3}, {"beta": 5.0}, {"loss": "hinge"}, {"reference_free": True}, {"average": True}, {"sft_weight": 0.5},
    {"sft_weight": 0.5, "reduction": "token_mean"}, {"optimizer": "rmsprop"}, {"schedule": "cosine"},
    {"warmup_ratio": 0.5}, {"grad_clip": 1e-9}, {"weight_decay": 10.0}, {"betas": (0.5, 0.9)}, {"batch_size": 3},
    {"dtype": "bfloat16"}, {"lora": {"rank": 2, "dropout": 0.1}},
]  # fmt: skip


@pytest.mark.parametrize("changes", KNOBS, ids=str)
def test_every_training_param_changes_the_curve(
    tiny: Path, duels: Maker, tmp_path: Path, plain_curve: list[dict[str, float]], changes: dict[str, Any]
) -> None:
    assert run(tiny, duels(8), tmp_path, params(**changes)).curve != plain_curve


def test_the_sft_term_is_a_mean_over_examples_or_tokens_as_reduction_specifies(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    by = {
        reduction: run(tiny, duels(8), tmp_path / reduction, params(sft_weight=0.5, reduction=reduction)).first
        for reduction in ("example_mean", "token_mean")
    }
    pairs, _ = encode_pairs(duels(8), ChatFormat.load(tiny), params())
    plan = make_plan(lengths_of(pairs), batch_size=4, row_tokens=200, micro_batch_tokens=400, seed=3)
    first = [pairs[index] for index in plan.steps[0].examples]
    job = PairJob(
        model_dir=tiny, opponent_dir=tiny, opponent="", out_dir=tmp_path, checkpoints=tmp_path, scores=tmp_path,
        params=params(), seed=3, threads=1,
    )  # fmt: skip
    model = load_base(tiny, params())[0].eval()
    losses = [(-opponent.score_pairs(model, [pair], opponent.ALONE, job)[0][0], pair.real.trained) for pair in first]
    assert by["example_mean"]["nll/real"] == pytest.approx(sum(loss / n for loss, n in losses) / 4, rel=1e-5)
    total = sum(loss for loss, _ in losses) / sum(n for _, n in losses)
    assert by["token_mean"]["nll/real"] == pytest.approx(total, rel=1e-5)
    assert by["token_mean"]["loss"] == pytest.approx(LN2 + 0.5 * total, rel=1e-5)


def test_with_row_tokens_1_each_side_of_a_pair_has_a_row_of_its_own() -> None:
    assert side_rows(((1,), (0, 2)), 512) == ((2, 3), (0, 1, 4, 5))
    assert side_rows(((1,), (0,)), 1) == ((2,), (3,), (0,), (1,))


def test_batch_layout_and_gradient_checkpointing_do_not_change_the_curve(
    tiny: Path, duels: Maker, tmp_path: Path, plain_curve: list[dict[str, float]]
) -> None:
    for name, changes in {
        "narrow": {"row_tokens": 1, "micro_batch_tokens": 1},
        "wide": {"row_tokens": 4000, "micro_batch_tokens": 4000},
        "saving": {"gradient_checkpointing": True},
        "apart": {"attention": "segments", "gradient_checkpointing": True},
    }.items():
        curve = run(tiny, duels(8), tmp_path / name, params(**changes)).curve  # type: ignore[arg-type]
        for row, plain in zip(curve, plain_curve, strict=True):
            assert row == pytest.approx(plain, rel=1e-4, abs=1e-4)


def test_the_same_training_gives_the_same_bytes_and_an_exact_token_count(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    cfg = params(optimizer="rmsprop")
    reports = [run(tiny, duels(10), tmp_path / name, cfg) for name in "ab"]
    assert reports[0].model_dump(exclude={"timing"}) == reports[1].model_dump(exclude={"timing"})
    files = [{f.name: f.read_bytes() for f in (tmp_path / name / "model").iterdir()} for name in "ab"]
    assert files[0] == files[1]
    assert set(files[0]) >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    report, (pairs, counters) = reports[0], encode_pairs(duels(10), ChatFormat.load(tiny), cfg)
    assert report.counters == counters
    assert report.real_tokens == 2 * sum(len(one.real.ids) + len(one.generated.ids) for one in pairs)
    assert report.trained_tokens == 2 * sum(one.real.trained + one.generated.trained for one in pairs)
    assert report.padding == pytest.approx(1 - report.real_tokens / report.tokens)
    assert report.loss == [(row["step"], row["loss"]) for row in report.curve]


def test_max_train_tokens_overrides_epochs_and_zero_epochs_copy_the_model(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    pairs, _ = encode_pairs(duels(8), ChatFormat.load(tiny), params())
    total = sum(lengths_of(pairs))
    report = run(tiny, duels(8), tmp_path / "budget", params(epochs=0, max_train_tokens=3 * total))
    assert 3 * total <= report.real_tokens < 3 * total + 4 * 300
    for name, cfg in (
        ("none", params(epochs=0)),
        ("nothing matched", params().model_copy(update={"max_train_tokens": 0})),  # a control of untrained iterations
    ):
        nothing = run(tiny, duels(8), tmp_path / name, cfg)
        assert (nothing.steps, nothing.counters.pairs) == (0, 8)
        copied = {f.name: f.read_bytes() for f in (tmp_path / name / "model").iterdir()}
        assert copied == {f.name: f.read_bytes() for f in tiny.iterdir()}


def test_bad_input_is_reported_in_one_sentence(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    with refused_with(r"no pairs remain to train on \(4 longer than max_length 20, 0 with nothing"):
        run(tiny, duels(4), tmp_path, params(max_length=20))
    with refused_with("contains no model"):
        run(tmp_path / "nowhere", duels(4), tmp_path, params())
    foreign = Message(role="assistant", content="a", token_ids=[100_000], weight=1.0)
    with refused_with("token ids from 100000 to 100000, and the model's are 0 to 319"):
        run(tiny, [duels(1)[0].model_copy(update={"generated": [foreign]})], tmp_path, params())
    assert not (tmp_path / "model").exists()


def test_diverging_training_stops_at_that_step_and_writes_no_model(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    cfg = params(schedule="constant", warmup_ratio=0.0).model_copy(update={"lr": 1e37})  # beyond params' limit
    with pytest.raises(UserError, match=r"^step 2 of 6: the loss is .* and the gradient norm nan, .*lower train"):
        run(tiny, duels(12), tmp_path, cfg)
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("launcher", "attention"),
    [
        ({"kind": "fork", "processes": 2}, "sdpa"),
        ({"kind": "torchrun", "processes": 2}, "segments"),
        ({"kind": "deepspeed", "processes": 2, "zero_stage": 3}, "segments"),
    ],
    ids=["fork", "ddp", "zero3"],
)
def test_two_processes_give_the_metrics_and_weights_of_one_process(
    tiny: Path, duels: Maker, tmp_path: Path, launcher: dict[str, Any], attention: str
) -> None:
    cfg = {"batch_size": 8, "epochs": 1, "validation": 0.2, "save_steps": 2, "optimizer": "rmsprop", "lr": 1e-4}
    alone = run(tiny, duels(25), tmp_path / "alone", params(**cfg))
    seen: list[int] = []
    together = run(
        tiny, duels(25), tmp_path / "together", params(**cfg, launcher=launcher, attention=attention),
        progress=lambda done, of, note, metrics: seen.append(done),
    )  # fmt: skip
    for one, two in zip(alone.curve + alone.evaluations, together.curve + together.evaluations, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-3)
    assert together.first["loss"] == pytest.approx(LN2, abs=1e-5)
    assert seen[-3:] == [1, 2, 3]
    assert (together.real_tokens, together.pairs, together.held_out) == (alone.real_tokens, 20, 5)
    lines = [
        len(f.read_text().splitlines()) for f in (tmp_path / "together" / "scratch" / "opponent").glob("*/*.jsonl")
    ]
    assert sorted(lines) == [12, 13]  # the pairs are divided among the processes, and none is scored twice
    one, two, start = (weights(folder) for folder in (tmp_path / "alone/model", tmp_path / "together/model", tiny))  # type: ignore[assignment]
    for name, tensor in one.items():
        assert (two[name] - tensor).norm() <= 0.02 * (tensor - start[name]).norm()  # type: ignore[union-attr]
    assert json.loads((tmp_path / "together/model/config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("attention", ["sdpa", "segments"])
def test_a_step_with_fewer_pairs_than_processes_gives_the_metrics_and_weights_of_one_process(
    tiny: Path, duels: Maker, tmp_path: Path, attention: str
) -> None:
    cfg = {"batch_size": 4, "epochs": 1, "sft_weight": 1.0, "attention": attention}  # steps of 4 pairs and of 1 pair
    fork = {"kind": "fork", "processes": 2}
    alone = run(tiny, duels(5), tmp_path / "alone", params(**cfg))
    together = run(tiny, duels(5), tmp_path / "together", params(**cfg, launcher=fork))
    assert len(together.curve) == 2
    for one, two in zip(alone.curve, together.curve, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-3)
    one, two, start = (weights(folder) for folder in (tmp_path / "alone/model", tmp_path / "together/model", tiny))  # type: ignore[assignment]
    for name, tensor in one.items():
        assert (two[name] - tensor).norm() <= 0.02 * (tensor - start[name]).norm()  # type: ignore[union-attr]


def test_training_does_not_depend_on_when_a_process_sees_the_other_processes_files_of_scores(
    tiny: Path, duels: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = params(epochs=1, launcher={"kind": "fork", "processes": 2})
    together = run(tiny, duels(9), tmp_path / "together", cfg)
    monkeypatch.setattr(opponent, "_journal", lambda folder, rank: Journal(folder / f"{rank}.jsonl"))  # never
    apart = run(tiny, duels(9), tmp_path / "apart", cfg)
    assert apart.curve == together.curve
    assert apart.timing.opponent_scored == together.timing.opponent_scored
