"""Weighted SFT: the training loop with RISE's objective."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.training_args import TrainingArguments

from selfimprove.core.sums import float_sum
from selfimprove.training.config import Normalization
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import RunJob, check_ids, join, own_threads, plan_of
from selfimprove.training.loading import load_model
from selfimprove.training.loop import PlannedTrainer
from selfimprove.training.objective import effective_weight, example_scales, weighted_nll
from selfimprove.training.packing import MicroBatch, PackingPlan
from selfimprove.training.progress import Progress
from selfimprove.training.report import Timing, TrainReport
from selfimprove.training.rows import render


class SftJob(RunJob):
    """Specification of a training process for weighted SFT."""

    weight_normalization: Normalization = "none"


def train(job: SftJob, examples: Sequence[EncodedExample], progress: Progress | None = None) -> TrainReport:
    """Train, and write a model folder's weights and config to ``job.out_dir`` (by the first process).

    Continues from the newest complete checkpoint in ``job.checkpoints``. On CPU the result is then bitwise the same as
    without interruption, for the same number of threads.

    Raises:
        UserError: the model cannot be loaded, or the examples contain ids outside its vocabulary.
    """
    params = job.params
    with own_threads(job):
        arguments = join(job)
        plan = plan_of(job, [len(example.ids) for example in examples], world_size=arguments.world_size)
        model, rope_factor = load_model(job.model_dir, params, job.seed)
        check_ids(model.config, examples, job.model_dir)
        trainer = WeightedTrainer(model, arguments, job, examples, plan, progress)
        seconds = trainer.run()
        trainer.write_model(job.out_dir)
    return trainer.report(seconds, rope_factor)


class WeightedTrainer(PlannedTrainer):
    """Trains on the batch mean of weight times negative log-likelihood; its only metric is the loss."""

    _job: SftJob

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        job: SftJob,
        examples: Sequence[EncodedExample],
        plan: PackingPlan,
        progress: Progress | None,
    ) -> None:
        self._examples = examples
        super().__init__(model, arguments, job, [len(example.ids) for example in examples], plan, progress)

    def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of coefficient times token loss over one micro-batch."""
        loss = weighted_nll(self.logits_of_trained(model, inputs), inputs["input_ids"], inputs["coefficients"])
        return loss, loss[None]

    def rendered(self, share: Sequence[MicroBatch], batch: Sequence[int]) -> Iterator[dict[str, Any]]:
        examples = [self._examples[index] for index in batch]
        scales = example_scales(examples, self._job.params.reduction, self._job.weight_normalization)
        of = dict(zip(batch, scales, strict=True))
        return (render(micro, self._examples, of, self._pad_id, self._job.params.attention) for micro in share)

    def report(self, seconds: float, rope_factor: float | None) -> TrainReport:
        """Report on the training, with the loss curve."""
        return TrainReport(
            **self.told(rope_factor),
            **trained_counts(self._plan, self._examples, self._job),
            loss=[(step, loss) for step, (loss,) in self.means()],
            timing=Timing(**self.timing(seconds)),
        )


def trained_counts(plan: PackingPlan, examples: Sequence[EncodedExample], job: SftJob) -> dict[str, Any]:
    """The counts of examples and tokens, and the mean weights, of a ``TrainReport``."""
    read = [index for step in plan.steps for index in step.examples]
    stretched = 0.0
    for step in plan.steps:
        batch = [examples[index] for index in step.examples]
        scales = example_scales(batch, job.params.reduction, job.weight_normalization)
        stretched += effective_weight(batch, scales) * len(batch)
    return {
        "examples": plan.examples,
        "trained_tokens": sum(examples[index].trained for index in read),
        "mean_weight": stretched / max(1, plan.examples),
        "raw_mean_weight": float_sum(examples[index].weight for index in read) / max(1, len(read)),
    }
