"""The training loop shared by all objectives: HF Trainer over a plan of packed rows, with exact resumption.

Trainer handles the optimiser, schedule, clipping, precision, distribution and checkpoint contents. This module decides
what an optimiser step reads (``packing``), when a checkpoint is complete, and how validation is measured; the loss is
defined by each objective's trainer.
"""

import contextlib
import json
import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers.trainer import Trainer
from transformers.trainer_callback import PrinterCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from selfimprove.core.errors import UserError
from selfimprove.core.sums import float_sum
from selfimprove.training import flash
from selfimprove.training.checkpoints import folders, is_whole, keep_newest, newest_for_all, seal
from selfimprove.training.gradients import mean_in_order
from selfimprove.training.job import RunJob
from selfimprove.training.loading import write_adapter
from selfimprove.training.objective import trained_positions
from selfimprove.training.packing import MicroBatch, PackingPlan, lay_out
from selfimprove.training.progress import Progress
from selfimprove.training.rows import END_TO_END, MODEL_INPUTS
from selfimprove.training.stopping import END, SaveClock, signals_ask

METRICS = "metrics.json"


class PlannedTrainer(Trainer):
    """HF Trainer whose "batch" is one process's share of one optimiser step: a list of micro-batches.

    A step's metrics are a list that starts with the loss, summed over micro-batches and processes.

    Attributes:
        metrics: their names.
    """

    metrics: tuple[str, ...] = ("loss",)

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        job: RunJob,
        lengths: Sequence[int],
        plan: PackingPlan,
        progress: Progress | None,
    ) -> None:
        """``lengths``: tokens of every item (example or pair): those in the plan, then ``job.validation`` more."""
        self._job, self._lengths, self._plan = job, lengths, plan
        self._progress = progress
        self._metrics: list[list[float]] = []
        self._evaluations: list[dict[str, int | float]] = []
        self._pending: list[torch.Tensor] = []
        self._trained: torch.Tensor | None = None
        self._rate = 0.0
        self._save_clock, self._ending = SaveClock(), False
        # The output layer takes a fifth of a small model's compute and most of a batch's memory: skip unused positions.
        model.get_output_embeddings().register_forward_pre_hook(self._only_trained)  # type: ignore[operator]
        self._pad_id = int(getattr(model.config, "pad_token_id", None) or 0)
        if len(plan.steps) == 1:
            arguments.warmup_steps = 0  # it would begin at a rate of 0, and the only step would change nothing
        super().__init__(model=model, args=arguments, train_dataset=_Steps(self))
        self.remove_callback(PrinterCallback)
        self.add_callback(_EveryStep(self))

    # Defined by each objective.

    @abstractmethod
    def rendered(self, share: Sequence[MicroBatch], batch: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Input tensors of this process's ``share`` of the items ``batch``, for training or validation.

        One micro-batch at a time: held-out items may be too many for all of them to be in memory.
        """

    @abstractmethod
    def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss (a scalar) and metrics [k] of one micro-batch, each as its share of the whole step's."""

    # Called by Trainer.

    def micro_batches(self, number: int) -> list[dict[str, Any]]:
        """Input tensors of this process's share of step ``number``."""
        step = self._plan.steps[number]
        return list(self.rendered(step.shares[self.args.process_index], step.examples))

    def get_train_dataloader(self) -> DataLoader:
        """This process's share of each of the plan's steps, in order."""
        steps = _Steps(self)
        return DataLoader(steps, sampler=SequentialSampler(steps), batch_size=1, collate_fn=lambda items: items[0])

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> None:
        return None  # the coefficients already include the division by the batch size

    def _prepare_input(self, data: Any) -> Any:
        """Move a micro-batch to the device unchanged; Trainer would cast its coefficients to DeepSpeed's bfloat16."""
        return data.to(self.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """As in Trainer, before the optimiser step; raises a ``UserError`` if loss or norm is not finite."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._rate = self._get_learning_rate()  # this step's; it is reported when the schedule has moved on
        loss = float(self._pending[-1][0]) if self._pending else self._metrics[-1][0]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise UserError(
                f"step {self.state.global_step + 1} of {self.state.max_steps}: the loss is {loss:.4g} and the gradient "
                f"norm {float(norm):.4g}, so training has diverged; lower train.lr, or the examples' weights."
            )
        return norm

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Accumulate gradients over this process's micro-batches; returns its share of the loss times the world size.

        DDP and DeepSpeed average gradients over processes; the factor turns that into a sum. There is no other
        division: accumulation happens here, so Trainer, accelerate and DeepSpeed see one micro-batch per step.
        """
        model.train()
        total: torch.Tensor | float = 0.0
        for index, micro in enumerate(inputs):
            last = index == len(inputs) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            hold = not last and not self.is_deepspeed_enabled
            with self.accelerator.no_sync(model) if hold else contextlib.nullcontext():
                loss, metrics = self.micro_loss(model, self._prepare_inputs(micro))
                loss = loss * self.args.world_size
                if self.is_deepspeed_enabled:
                    self.accelerator.backward(loss, scale_wrt_gas=False)
                else:
                    self.accelerator.backward(loss)
            total = total + metrics.detach() * self.args.world_size
        assert isinstance(total, torch.Tensor)
        self._pending.append(total)
        return total[0]

    def logits_of_trained(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Logits [trained, vocabulary] that predict the tokens with nonzero coefficients, in row order."""
        self._trained = trained_positions(inputs["coefficients"])
        read = {key: inputs[key] for key in MODEL_INPUTS if key in inputs}
        return model(**read, use_cache=False).logits

    def _only_trained(self, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Pre-hook of the output layer that keeps only hidden states [trained, hidden] whose next token is trained."""
        return inputs if self._trained is None else (inputs[0][self._trained],)

    # Checkpoints, written atomically.

    def run(self) -> float:
        """Train to the end of the plan from the newest complete checkpoint; returns this call's seconds."""
        checkpoint = newest_for_all(self._job.checkpoints)
        if checkpoint is not None:
            self.restore(json.loads((checkpoint / METRICS).read_text(encoding="utf-8")))
        if self.is_world_process_zero():
            for folder in folders(self._job.checkpoints):
                if folder != checkpoint and (checkpoint is None or not is_whole(folder)):
                    shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()
        started = time.monotonic()
        self._resumed_at = self._tracked = len(self._metrics)
        self._clock = started
        if self._resumed_at < len(self._plan.steps):
            with signals_ask():
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        self.settle()
        self._check_weights()
        return time.monotonic() - started

    def _check_weights(self) -> None:
        """Raise a ``UserError`` if a weight is not finite; with ZeRO-3 each process checks its shard."""
        assert self.model is not None
        for name, weight in self.model.named_parameters():
            if weight.requires_grad and not torch.isfinite(getattr(weight, "ds_tensor", weight)).all():
                raise UserError(
                    f"after the last step, {name} holds numbers that are not finite, so training has diverged; lower "
                    "train.lr."
                )

    def wishes(self) -> int:
        """The strongest wish of any process after this step, see ``SaveClock.wish`` (collective call)."""
        mine = self._save_clock.wish(first=self.is_world_process_zero())
        if self.args.world_size == 1:
            return mine
        total = torch.tensor([float(mine)], device=self.args.device)
        torch.distributed.all_reduce(total)
        return min(END, int(total))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with self._save_clock.saving():
            self.settle()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                self._seal_checkpoint()
        if self._ending:
            self.accelerator.wait_for_everyone()
            raise KeyboardInterrupt

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Trainer, in which every process of ZeRO-2 copies all weights to host memory before the first saves."""
        if self._takes_part_in_saving():
            super().save_model(output_dir, _internal_call)

    def _takes_part_in_saving(self) -> bool:
        """Whether saving the weights needs this process: only the first one, except with ZeRO-3, which gathers them."""
        gathers = self.is_deepspeed_enabled and self._job.params.launcher.zero_stage == 3
        return gathers or self.is_world_process_zero()

    def _seal_checkpoint(self) -> None:
        folder = self._job.checkpoints / f"checkpoint-{self.state.global_step}"
        (folder / METRICS).write_text(json.dumps(self.history()), encoding="utf-8")
        seal(folder)
        keep_newest(self._job.checkpoints, self._job.params.save_total_limit)

    def settle(self) -> None:
        """Convert the pending steps' metrics to numbers, summed over processes (collective call)."""
        if not self._pending:
            return
        shares = torch.stack(self._pending)
        self._pending = []
        self._metrics += self.accelerator.reduce(shares, reduction="mean").tolist()

    def history(self) -> dict[str, Any]:
        """The metrics so far, for a checkpoint."""
        return {"steps": self._metrics, "evaluations": self._evaluations}

    def restore(self, history: dict[str, Any]) -> None:
        """Restore the metrics from a checkpoint."""
        self._metrics, self._evaluations = history["steps"], history["evaluations"]

    # Validation.

    def step_ended(self, step: int) -> None:
        """Evaluate the held-out items at the end of an epoch (collective call)."""
        if self._job.validation and step in self._epoch_ends():
            self._evaluations.append({"step": step, **self.measure()})

    def measure(self) -> dict[str, float]:
        """Metrics of the held-out items (collective call)."""
        model = self.model_wrapped
        model.eval()
        total = torch.zeros(len(self.metrics), device=self.args.device)
        with torch.no_grad():
            for micro in self._held_out():
                total += self.micro_loss(model, self._prepare_inputs(micro))[1]
        metrics = self.accelerator.reduce(total, reduction="sum").tolist()
        return {f"eval_{name}": metric for name, metric in zip(self.metrics, metrics, strict=True)}

    def _held_out(self) -> Iterator[dict[str, Any]]:
        """Input tensors of this process's share of all held-out items."""
        params, world = self._job.params, self.args.world_size
        batch = range(len(self._lengths) - self._job.validation, len(self._lengths))
        filled = params.attention not in END_TO_END
        shares = lay_out(batch, self._lengths, params.row_tokens, params.micro_batch_tokens, world, filled)
        return self.rendered(shares[self.args.process_index], batch)

    def _epoch_ends(self) -> set[int]:
        items, read, ends = len(self._lengths) - self._job.validation, 0, {len(self._plan.steps)}
        for number, step in enumerate(self._plan.steps, start=1):
            before, read = read, read + len(step.examples)
            if read // items > before // items:
                ends.add(number)
        return ends

    # Results.

    def told(self, rope_factor: float | None) -> dict[str, Any]:
        """The fields of ``RunReport`` except the number of trained tokens."""
        plan = self._plan
        return {
            "steps": len(plan.steps),
            "tokens": plan.padded_tokens,
            "real_tokens": plan.real_tokens,
            "padding": plan.padding,
            "held_out": self._job.validation,
            "evaluations": self._evaluations,
            "attention": flash.running(self.accelerator.unwrap_model(self.model)),
            "rope_factor": rope_factor,
        }

    def timing(self, seconds: float) -> dict[str, Any]:
        """The fields of ``Timing`` for this call."""
        here = (index for step in self._plan.steps[self._resumed_at :] for index in step.examples)
        rate = sum(self._lengths[index] for index in here) / max(seconds, 1e-9)
        return {"seconds": seconds, "tokens_per_second": rate, "resumed_at": self._resumed_at}

    def write_model(self, out_dir: Path) -> None:
        """Write weights (or only the adapter) and config in the training dtype."""
        params = self._job.params
        if params.lora is not None:
            adapter = self._job.checkpoints / "adapter"
            self.save_model(str(adapter))
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                write_adapter(adapter, self._job.model_dir, params, out_dir)
            return
        model = self.accelerator.unwrap_model(self.model)
        state = None
        if not self.is_deepspeed_enabled:
            model.to(getattr(torch, params.dtype))
        elif self._takes_part_in_saving():
            state = self.accelerator.get_state_dict(self.model_wrapped)
        if self.is_world_process_zero():
            model.config.use_cache = True
            model.save_pretrained(out_dir, state_dict=state)

    def curve_points(self, step: int) -> dict[str, float]:
        """Points of the curves after ``step``: its metrics, if just settled, and its validation, if just measured."""
        every, steps = self._job.params.logging_steps, self._plan.steps
        last = self._evaluations[-1] if self._evaluations else {"step": 0}
        measured = {name: value for name, value in last.items() if name != "step" and last["step"] == step}
        if step % every and step != len(steps):
            return measured
        window = self._metrics[(step - 1) // every * every : step]
        tokens = sum(one.tokens for one in steps[self._tracked : step])
        seconds, self._clock, self._tracked = time.monotonic() - self._clock, time.monotonic(), step
        means = _means(window)
        metrics = dict(zip(self.metrics, means, strict=True))
        metrics |= {"learning_rate": self._rate, "tokens_per_second": tokens / max(seconds, 1e-9)}
        return metrics | measured

    def means(self) -> list[tuple[int, list[float]]]:
        """(step, mean metrics since the previous entry), every ``logging_steps`` steps."""
        every, curve = self._job.params.logging_steps, []
        for start in range(0, len(self._metrics), every):
            window = self._metrics[start : start + every]
            curve.append((start + len(window), _means(window)))
        return curve


class _Steps(Dataset):
    """The plan as a dataset whose item n is this process's share of step n."""

    def __init__(self, trainer: PlannedTrainer) -> None:
        self._trainer = trainer

    def __len__(self) -> int:
        return len(self._trainer._plan.steps)

    def __getitem__(self, number: int) -> list[dict[str, Any]]:
        return self._trainer.micro_batches(number)


class _EveryStep(TrainerCallback):
    """Requests a checkpoint every ``save_steps``, or sooner by the clock or on a stop request, and reports progress.

    There is no checkpoint after the last step, because the model itself is written next.
    """

    def __init__(self, trainer: PlannedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = self._trainer.model_wrapped
        if isinstance(model, DistributedDataParallel) and args.use_cpu:
            model.register_comm_hook(None, lambda state, bucket: mean_in_order(bucket.buffer()))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        params, trainer = self._trainer._job.params, self._trainer
        if state.global_step < state.max_steps:
            wish = trainer.wishes()
            control.should_save = wish > 0 or state.global_step % params.save_steps == 0
            trainer._ending = wish == END
        if state.global_step % params.logging_steps == 0 or state.global_step == state.max_steps:
            trainer.settle()
        trainer.step_ended(state.global_step)
        if trainer._progress is not None and args.local_process_index == 0:  # one per node; rank 0 may be on another
            note = f"loss {trainer._metrics[-1][0]:.4f}" if trainer._metrics else ""
            trainer._progress(state.global_step, state.max_steps, note, trainer.curve_points(state.global_step))
        return control


def _means(window: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each metric over the steps of ``window``, [steps][metrics]."""
    return [float_sum(column) / len(window) for column in zip(*window, strict=True)]
