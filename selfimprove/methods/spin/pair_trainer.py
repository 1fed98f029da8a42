"""Self-play training: the training loop with SPIN's objective. Both sides of a pair share one forward pass."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers.training_args import TrainingArguments

from selfimprove.core.errors import UserError
from selfimprove.methods.spin import opponent
from selfimprove.methods.spin.encode import EncodedPair, lengths_of, pairs_of, sequences_of, side_rows
from selfimprove.methods.spin.objective import (
    FIRST_LOSS,
    METRICS,
    gap,
    implicit_rewards,
    over_sequences,
    pair_losses,
    token_log_probs,
)
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import RunJob, check_ids, join, own_threads, plan_of
from selfimprove.training.loading import load_model
from selfimprove.training.loop import PlannedTrainer
from selfimprove.training.objective import trained_positions
from selfimprove.training.packing import MicroBatch, PackingPlan
from selfimprove.training.progress import Progress
from selfimprove.training.report import PairReport, PairTiming
from selfimprove.training.rows import render

TOKEN_ROUNDING = {"float32": 2e-5, "bfloat16": 2e-2}
"""Tolerance, in nats, for the difference between a token's log-probabilities in scoring and in the first step."""


ROUNDING = 1e-6
"""Relative error of the float32 sum over a sequence."""


class PairJob(RunJob):
    """Training on pairs, as passed to a training process."""

    params: PairParams
    opponent_dir: Path
    opponent: str
    """the opponent's ``weights_key``"""
    scores: Path


def train_pairs(job: PairJob, sequences: Sequence[EncodedExample], progress: Progress | None = None) -> PairReport:
    """As ``trainer.train``, for the sides of pairs as one list (``encode.sequences_of``).

    Raises:
        UserError: the model cannot be loaded, it has no embeddings for some ids, or the first loss is not that of a
            model against itself.
    """
    params = job.params
    pairs = pairs_of(sequences)
    with own_threads(job):
        # Before the process group exists, since a ZeRO-3 run would shard the opponent while loading it.
        folder = opponent.scores_folder(job, job.opponent, job.scores)
        started = time.monotonic()
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        scored = opponent.score(job, job.opponent_dir, folder, pairs, rank=rank, world=world, progress=progress)
        seconds_of_opponent = time.monotonic() - started
        settings = {"optim": "rmsprop"} if params.optimizer == "rmsprop" else {}
        arguments = join(job, **settings)
        plan = plan_of(job, lengths_of(pairs), world_size=arguments.world_size, whole_epochs=True)
        model, rope_factor = load_model(job.model_dir, params, job.seed, dropout=False)
        check_ids(model.config, sequences, job.model_dir)
        trainer = PairTrainer(model, arguments, job, pairs, plan, progress)
        trainer.read_opponent(folder)
        seconds = trainer.run()
        trainer.write_model(job.out_dir)
    return trainer.report(seconds, rope_factor, seconds_of_opponent, scored)


class PairTrainer(PlannedTrainer):
    """Trains on the mean of SPIN's loss over a step's pairs; its metrics are ``objective.METRICS``."""

    _job: PairJob
    metrics = METRICS

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        job: PairJob,
        pairs: Sequence[EncodedPair],
        plan: PackingPlan,
        progress: Progress | None,
    ) -> None:
        self._pairs, self._sequences = pairs, sequences_of(pairs)
        self._scored = [(pair.real.trained, pair.generated.trained) for pair in pairs]
        self._opponent: list[opponent.Score] = []
        super().__init__(model, arguments, job, lengths_of(pairs), plan, progress)

    def read_opponent(self, folder: Path) -> None:
        """Read the opponent's scores of this process's share and gather those of all processes.

        The other nodes' files are not read: a shared file system may show their last lines late.
        """
        rank, world = self.args.process_index, self.args.world_size
        shares = gather_object([opponent.read_scores(folder, self._pairs[rank::world], rank)])
        self._opponent = [shares[pair % world][pair // world] for pair in range(len(self._pairs))]

    def rendered(self, share: Sequence[MicroBatch], batch: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Input tensors of each micro-batch, with the indices of its pairs."""
        return (self._render(micro, batch) for micro in share)

    def _render(self, micro: MicroBatch, batch: Sequence[int]) -> dict[str, Any]:
        """Replace each pair of a row by its sides, real before generated; attention does not cross sides."""
        rows = side_rows(micro, self._job.params.row_tokens)
        scales = {side: 1.0 for row in rows for side in row}
        inputs: dict[str, Any] = render(rows, self._sequences, scales, self._pad_id, self._job.params.attention)
        # Python numbers, because DeepSpeed would cast tensors to bfloat16.
        inputs["pairs"] = [index for row in micro for index in row]
        inputs["batch"] = len(batch)
        inputs["batch_tokens"] = sum(self._scored[index][0] for index in batch)
        return inputs

    def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """SPIN's loss of the micro-batch's pairs, and its metrics."""
        params, held = self._job.params, inputs["pairs"]
        logits = self.logits_of_trained(model, inputs)
        predicting = trained_positions(inputs["coefficients"])[:, :-1]
        values = token_log_probs(logits, inputs["input_ids"][:, 1:][predicting])

        def numbers(of: Any) -> torch.Tensor:
            return torch.tensor(of, dtype=torch.float32, device=values.device)

        scored = [self._scored[index] for index in held]  # empty if a step has fewer pairs than processes
        lengths = torch.tensor(scored, dtype=torch.long, device=values.device).view(-1, 2)
        sums = over_sequences(values, lengths.flatten()).view(-1, 2)
        reference = numbers([self._opponent[index] for index in held]).view(-1, 2)
        scores, against = (sums / lengths, reference / lengths) if params.average else (sums, reference)
        # Rounding makes equal sides differ, which an optimiser that normalises gradients would amplify to a full step.
        different = numbers([not self._pairs[index].identical for index in held])
        h = gap(scores, against, reference_free=params.reference_free) * different
        tokens = inputs["batch_tokens"] if params.reduction == "token_mean" else inputs["batch"] * lengths[:, 0]
        nll = -(sums[:, 0] / tokens).sum()
        loss = pair_losses(h, params.beta, params.loss).sum() / inputs["batch"]
        if params.sft_weight:
            loss = loss + params.sft_weight * nll

        with torch.no_grad():
            rewards = implicit_rewards(scores, against, params.beta)
            means = over_sequences(logits.float().mean(-1), lengths.flatten()).view(-1, 2) / lengths
            drift = (sums - reference).abs().sum(1) / lengths.sum(1)
            # Strictly greater, beyond rounding: a model against itself has accuracy 0.
            won = (rewards[:, 0] - rewards[:, 1] > params.beta * ROUNDING * against.abs().sum(1)).float()
            columns = [*rewards.T, rewards[:, 0] - rewards[:, 1], won, *scores.T, *means.T]
            shares = torch.stack(columns).sum(1) / inputs["batch"]
            metrics = torch.stack([loss, *shares, nll, drift.sum() / inputs["batch"]])
        return loss, metrics

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """As for every objective; also checks that the first loss, before any update, is a model's against itself."""
        total = super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step == 0:
            self.settle()
            if not self._job.params.other_opponent:
                first = self._plan.steps[0].examples
                tokens = sum(sum(self._scored[index]) for index in first) / len(first)
                check_first(dict(zip(METRICS, self._metrics[0], strict=True)), tokens, len(first), self._job)
        return total

    def report(self, seconds: float, rope_factor: float | None, opponent_seconds: float, scored: int) -> PairReport:
        """Report on the training, with the curves of its metrics."""
        read = [index for step in self._plan.steps for index in step.examples]
        return PairReport(
            **self.told(rope_factor),
            pairs=self._plan.examples,
            trained_tokens=sum(sum(self._scored[index]) for index in read),
            first=dict(zip(METRICS, self._metrics[0], strict=True)),
            curve=[{"step": step, **dict(zip(METRICS, row, strict=True))} for step, row in self.means()],
            timing=PairTiming(**self.timing(seconds), opponent_seconds=opponent_seconds, opponent_scored=scored),
        )


def check_first(metrics: dict[str, float], tokens: float, pairs: int, job: PairJob) -> None:
    """Check that the first step's metrics are those of a model against itself: rewards 0 and the corresponding loss.

    Tolerance for rounding: in bfloat16 the errors of tokens are independent. Their sum grows with the square root of
    the number of tokens, and its mean over pairs shrinks with the square root of the number of pairs. Four standard
    deviations are allowed. (Assuming errors of equal sign would allow a loss of 1.7 instead of 0.69, for 500 tokens and
    beta 0.1.)

    Args:
        tokens: mean number of scored tokens of a pair; pairs: number of pairs of the step.

    Raises:
        UserError: the deviation exceeds rounding errors.
    """
    params = job.params
    coarse = params.dtype == "bfloat16" or params.tf32
    limit = TOKEN_ROUNDING["bfloat16" if coarse else "float32"]
    spread = 4 * limit * math.sqrt(tokens) if coarse else limit * tokens  # of a pair's sums, in nats
    loss = metrics["loss"] - params.sft_weight * metrics["nll/real"]
    expected = FIRST_LOSS[params.loss]
    rounding = params.beta * spread * (2 / tokens if params.average else 1) / (math.sqrt(pairs) if coarse else 1)
    reward = max(abs(metrics[f"rewards/{side}"]) for side in ("real", "generated"))
    away = 0.0 if params.reference_free else abs(loss - expected)
    if not (metrics["drift"] <= spread / tokens and reward <= rounding and away <= rounding):
        raise UserError(
            f"the first loss is {loss:.4f} with rewards up to {reward:.4f}, but a model against itself gives "
            f"{expected:.4f} and 0, so {job.model_dir} does not score the pairs as the opponent did; check that the "
            f"model's files are intact, delete {job.scores} and run again."
        )
