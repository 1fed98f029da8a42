"""Weighted SFT: the training loop with RISE's objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers.training_args import TrainingArguments

from selfimprove.training import flash
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import RunJob, check_vocabulary, join, own_threads
from selfimprove.training.loading import load_model
from selfimprove.training.loop import PlannedTrainer
from selfimprove.training.objective import effective_weight, example_scales, weighted_nll
from selfimprove.training.packing import MicroBatch, Plan, lay_out, make_plan
from selfimprove.training.progress import Progress
from selfimprove.training.report import Timing, TrainReport
from selfimprove.training.rows import END_TO_END, render


class Job(RunJob):
    """Weighted SFT, as a training process is told of it."""

    weight_normalization: Literal["none", "batch"] = "none"


def train(job: Job, examples: Sequence[EncodedExample], progress: Progress | None = None) -> TrainReport:
    """Train and write a model folder's weights and config to ``job.out_dir`` (by the first process).

    Continues from the newest whole checkpoint in ``job.checkpoints``; on CPU the result then has the same bytes as
    an unbroken run with the same number of threads.

    Raises:
        UserError: the model cannot be loaded, or the examples hold ids it does not know.
    """
    params = job.params
    with own_threads(job):
        arguments = join(job)
        plan = make_plan(
            [len(example.ids) for example in examples[: len(examples) - job.validation]],
            batch_size=params.batch_size,
            row_tokens=params.row_tokens,
            micro_batch_tokens=params.micro_batch_tokens,
            seed=job.seed,
            epochs=params.epochs,
            max_tokens=job.max_train_tokens,
            world_size=arguments.world_size,
            group_by_length=params.group_by_length,
            filled=params.attention not in END_TO_END,
        )
        model, rope_factor = load_model(job.model_dir, params, job.seed)
        check_vocabulary(model, examples, job.model_dir)
        trainer = WeightedTrainer(model, arguments, job, examples, plan, progress)
        seconds = trainer.run()
        trainer.write_model(job.out_dir)
    return trainer.report(seconds, rope_factor)


class WeightedTrainer(PlannedTrainer):
    """The batch mean of weight times negative log-likelihood; its one metric is the loss."""

    _job: Job

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        job: Job,
        examples: Sequence[EncodedExample],
        plan: Plan,
        progress: Progress | None,
    ) -> None:
        self._examples = examples
        super().__init__(model, arguments, job, plan, progress)

    def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of coefficient times token loss over one micro-batch."""
        loss = weighted_nll(self.logits_of_learnt(model, inputs), inputs["input_ids"], inputs["coefficients"])
        return loss, loss[None]

    def report(self, seconds: float, rope_factor: float | None) -> TrainReport:
        """What was trained, and how the loss went."""
        plan = self._plan
        read = [index for step in plan.steps for index in step.examples]
        here = [index for step in plan.steps[self._resumed_at :] for index in step.examples]
        tokens_here = sum(len(self._examples[index].ids) for index in here)
        return TrainReport(
            steps=len(plan.steps),
            examples=plan.examples,
            tokens=plan.padded_tokens,
            real_tokens=plan.real_tokens,
            trained_tokens=sum(self._examples[index].trained for index in read),
            padding=plan.padding,
            mean_weight=self._mean_weight(),
            raw_mean_weight=sum(self._examples[index].weight for index in read) / max(1, len(read)),
            loss=[(step, loss) for step, (loss,) in self.means()],
            held_out=self._job.validation,
            evaluations=self._evaluations,
            attention=flash.running(self.accelerator.unwrap_model(self.model)),
            rope_factor=rope_factor,
            timing=Timing(
                seconds=seconds,
                tokens_per_second=tokens_here / max(seconds, 1e-9),
                resumed_at=self._resumed_at,
            ),
        )

    def micro_batches(self, number: int) -> list[dict[str, Any]]:
        """Tensors of this process's share of step ``number``."""
        step = self._plan.steps[number]
        return self._rendered(step.shares[self.args.process_index], step.examples)

    @property
    def items(self) -> int:
        """Examples."""
        return len(self._examples)

    def held_out(self, batch: range) -> list[dict[str, Any]]:
        """See ``PlannedTrainer.held_out``."""
        params, world = self._job.params, self.args.world_size
        lengths, filled = [len(example.ids) for example in self._examples], params.attention not in END_TO_END
        shares = lay_out(batch, lengths, params.row_tokens, params.micro_batch_tokens, world, filled)
        return self._rendered(shares[self.args.process_index], batch)

    def _rendered(self, share: Sequence[MicroBatch], batch: Sequence[int]) -> list[dict[str, Any]]:
        scales = dict(zip(batch, self._scales(batch), strict=True))
        return [render(micro, self._examples, scales, self._pad_id, self._job.params.attention) for micro in share]

    def _scales(self, batch: Sequence[int]) -> list[float]:
        examples = [self._examples[index] for index in batch]
        return example_scales(examples, self._job.params.reduction, self._job.weight_normalization)

    def _mean_weight(self) -> float:
        total = 0.0
        for step in self._plan.steps:
            batch = [self._examples[index] for index in step.examples]
            total += effective_weight(batch, self._scales(step.examples)) * len(batch)
        return total / max(1, self._plan.examples)
