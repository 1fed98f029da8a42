"""TRL's DPO trainer gives our loss, gradient and metrics for the same pairs and the same two models.

Runs in the environment of ``make test-backends-trl``, which can import the main environment's packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message, Pair
from selfimprove.core.seeds import rng
from selfimprove.methods.spin import opponent
from selfimprove.methods.spin.encode import EncodedPair, encode_pairs, lengths_of
from selfimprove.methods.spin.objective import METRICS
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.pair_trainer import PairJob, PairTrainer
from selfimprove.training.job import join
from selfimprove.training.loading import load_base, load_model
from selfimprove.training.packing import make_plan
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.backend

NAMES = {
    "rewards/real": "rewards/chosen", "rewards/generated": "rewards/rejected", "rewards/margins": "rewards/margins",
    "rewards/accuracies": "rewards/accuracies", "logps/real": "logps/chosen", "logps/generated": "logps/rejected",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(policy, reference): the policy's weights have moved away from the reference's."""
    folder = tmp_path_factory.mktemp("models")
    reference = make_tiny_model(folder / "reference", hidden=32)
    policy, _ = load_base(reference, PairParams())
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.01 * torch.randn(weight.shape, generator=noise)
    policy.save_pretrained(folder / "policy")
    return folder / "policy", reference


@pytest.fixture(scope="module")
def pairs(models: tuple[Path, Path]) -> list[EncodedPair]:
    """Expert trajectories that look up a sum in an observation; generated guesses of several lengths."""
    random, made = rng("trl"), []
    for number in range(6):
        a, b = random.randrange(100), random.randrange(100)
        made.append(
            Pair(
                id=str(number),
                prompt=[Message(role="user", content=f"Mia has {a} apples and buys {b} more.")],
                real=[
                    Message(role="assistant", content=f"Search[{a} + {b}]", weight=1.0),
                    Message(role="user", content=f"{a} + {b} = {a + b}."),
                    Message(role="assistant", content=f"Finish[{a + b}]", weight=1.0),
                ],
                generated=[Message(role="assistant", content="I think. " * number + f"Finish[{a - b}]", weight=1.0)],
            )
        )
    return encode_pairs(made, ChatFormat.load(models[1]), PairParams())[0]


def ours(
    models: tuple[Path, Path], pairs: list[EncodedPair], folder: Path, cfg: PairParams
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Metrics and gradients of one step of our trainer, packed into several micro-batches."""
    policy, reference = models
    job = PairJob(
        model_dir=policy, opponent_dir=reference, opponent="", out_dir=folder / "out", checkpoints=folder / "c",
        scores=folder, params=cfg, seed=1, threads=1,
    )  # fmt: skip
    opponent.score(job, reference, folder / "scores", pairs)
    plan = make_plan(lengths_of(pairs), batch_size=len(pairs), row_tokens=200, micro_batch_tokens=300, seed=1)
    trainer = PairTrainer(load_model(policy, cfg, 1, dropout=False)[0], join(job), job, pairs, plan, None)
    trainer.read_opponent(folder / "scores")
    micros = trainer.micro_batches(0)
    assert len(micros) > 1
    metrics = torch.zeros(len(METRICS))
    for micro in micros:
        loss, shares = trainer.micro_loss(trainer.model, micro)  # type: ignore[arg-type]
        loss.backward()
        metrics += shares
    gradients = [weight.grad for weight in trainer.model.parameters()]  # type: ignore[union-attr]
    return dict(zip(METRICS, metrics.tolist(), strict=True)), gradients  # type: ignore[return-value]


def theirs(
    models: tuple[Path, Path], pairs: list[EncodedPair], folder: Path, cfg: PairParams
) -> tuple[float, dict[str, float], list[torch.Tensor]]:
    """Loss, metrics and gradients of TRL's trainer. Its collator cannot mask observations; they are masked after it."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    policy, reference = (load_base(model, cfg)[0] for model in models)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(models[1])
    losses: dict[str, Any] = {"loss_type": [cfg.loss]}
    if cfg.sft_weight:
        losses = {"loss_type": [cfg.loss, "sft"], "loss_weights": [1.0, cfg.sft_weight]}
    trainer = DPOTrainer(
        model=policy,
        ref_model=reference,
        args=DPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
            beta=cfg.beta, max_length=None, **losses,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        processing_class=tokenizer,
    )  # fmt: skip
    prompt = [next(t for t, weight in enumerate(pair.real.token_weights) if weight) for pair in pairs]
    rows = [
        {"prompt_ids": pair.real.ids[:n], "chosen_ids": pair.real.ids[n:], "rejected_ids": pair.generated.ids[n:]}
        for pair, n in zip(pairs, prompt, strict=True)
    ]
    inputs = DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(rows)
    sides = [pair.real for pair in pairs] + [pair.generated for pair in pairs]
    for row, side in enumerate(sides):
        inputs["completion_mask"][row, : len(side.ids)] *= torch.tensor(side.token_weights, dtype=torch.long)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    means = {name: sum(values) / len(values) for name, values in trainer._metrics["train"].items()}
    return float(loss.detach()), means, [weight.grad for weight in trainer.model.parameters()]


@pytest.mark.parametrize(
    "changes", [{}, {"beta": 1.0}, {"loss": "hinge"}, {"sft_weight": 0.5, "reduction": "token_mean"}], ids=str
)
def test_loss_gradient_and_metrics_equal_those_of_trls_dpo(
    models: tuple[Path, Path], pairs: list[EncodedPair], tmp_path: Path, changes: dict[str, Any]
) -> None:
    cfg = PairParams(**changes)
    metrics, gradients = ours(models, pairs, tmp_path, cfg)
    loss, means, expected = theirs(models, pairs, tmp_path, cfg)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5, rel=1e-5)
    assert abs(metrics["rewards/margins"]) > 1e-3  # the two models differ
    for name, name_there in NAMES.items():
        assert metrics[name] == pytest.approx(means[name_there], abs=1e-5, rel=1e-5)
    for mine, his in zip(gradients, expected, strict=True):
        assert torch.allclose(mine, his, rtol=1e-5, atol=1e-5 * float(his.abs().max()))
