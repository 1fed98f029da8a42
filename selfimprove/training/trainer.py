"""The training loop: HF Trainer over our plan of packed rows, with the weighted objective and exact resume.

Trainer keeps the optimiser, schedule, clipping, precision, distribution and checkpoint contents. Ours are: what one
optimiser step reads (``packing``), its loss (``objective``), and when a checkpoint counts as whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers.trainer import Trainer
from transformers.trainer_callback import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.training_args import TrainingArguments
from transformers.utils.logging import disable_progress_bar

from selfimprove.errors import UserError
from selfimprove.training.checkpoints import folders, is_whole, newest_whole, seal
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.loading import load_model, merge_adapter
from selfimprove.training.objective import effective_weight, example_scales, learnt_positions, weighted_nll
from selfimprove.training.packing import Plan, make_plan
from selfimprove.training.report import Timing, TrainReport
from selfimprove.training.rows import render
from selfimprove.training.zero import zero_config

Progress = Callable[[int, int, str], None]
"""Called after each optimiser step with (steps done, steps in all, a note to show)."""

LOSSES = "losses.json"


class Job(BaseModel):
    """All that a training process needs to know besides the encoded examples; what a worker reads from a file."""

    model_dir: Path
    out_dir: Path
    checkpoints: Path
    params: FinetuneParams
    seed: int
    threads: int
    weight_normalization: Literal["none", "batch"] = "none"
    max_tokens: int | None = None


def train(job: Job, examples: Sequence[EncodedExample], progress: Progress | None = None) -> TrainReport:
    """Train and write a model folder's weights and config to ``job.out_dir`` (by the first process).

    Continues from the newest whole checkpoint in ``job.checkpoints``; on CPU the result then has the same bytes as
    an unbroken run with the same number of threads.

    Raises:
        UserError: the model cannot be loaded, or the examples hold ids it does not know.
    """
    params = job.params
    _check_hardware(params)
    disable_progress_bar()  # the stage shows its own progress
    if params.device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # accelerate imports DeepSpeed, which else probes and warns
    threads_before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        arguments = _arguments(job)  # before the model: ZeRO-3 shards it as it is loaded
        world_size = arguments.world_size  # asking for it joins the process group
        if params.launcher.kind == "deepspeed":
            import deepspeed

            # On CPU accelerate leaves DeepSpeed's own view of the group unset, and sharding would count one process.
            deepspeed.init_distributed(dist_backend="gloo" if params.device == "cpu" else "nccl")
        plan = make_plan(
            [len(example.ids) for example in examples],
            batch_size=params.batch_size,
            row_tokens=params.row_tokens,
            micro_batch_tokens=params.micro_batch_tokens,
            seed=job.seed,
            epochs=params.epochs,
            max_tokens=job.max_tokens,
            world_size=world_size,
            group_by_length=params.group_by_length,
        )
        model, rope_factor = load_model(job.model_dir, params, job.seed)
        _check_vocabulary(model, examples, job.model_dir)
        trainer = WeightedTrainer(model, arguments, job, examples, plan, progress)
        seconds = trainer.run()
        trainer.write_model(job.out_dir)
    finally:
        torch.set_num_threads(threads_before)
    return trainer.report(seconds, rope_factor)


class WeightedTrainer(Trainer):
    """HF Trainer whose "batch" is one process's share of one optimiser step: a list of micro-batches."""

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        job: Job,
        examples: Sequence[EncodedExample],
        plan: Plan,
        progress: Progress | None,
    ) -> None:
        self._job, self._plan, self._examples = job, plan, examples
        self._progress = progress
        self._losses: list[float] = []
        self._pending: list[torch.Tensor] = []
        self._learnt: torch.Tensor | None = None
        # The output layer is a fifth of a small model's work and most of a batch's memory: only where it is needed.
        model.get_output_embeddings().register_forward_pre_hook(self._only_learnt)  # type: ignore[operator]
        self._pad_id = int(getattr(model.config, "pad_token_id", None) or 0)
        super().__init__(model=model, args=arguments, train_dataset=_Steps(self))
        self.remove_callback(PrinterCallback)
        self.add_callback(_EveryStep(self))

    # What Trainer asks for.

    def get_train_dataloader(self) -> DataLoader:
        """The plan's steps in order; this process's share of each."""
        steps = _Steps(self)
        return DataLoader(steps, sampler=SequentialSampler(steps), batch_size=1, collate_fn=lambda items: items[0])

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> None:
        return None  # the coefficients already hold the batch's mean

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated."""
        return 0

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Add up the gradients of this process's micro-batches; returns its share of the loss times the processes.

        Gradients are averaged over processes by DDP and DeepSpeed alike; the factor makes that a sum. Nothing else
        divides: accumulation happens here, so Trainer, accelerate and DeepSpeed are told of one micro-batch a step.
        """
        model.train()
        total = torch.zeros((), device=self.args.device)
        for index, micro in enumerate(inputs):
            last = index == len(inputs) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            hold = not last and not self.is_deepspeed_enabled
            with self.accelerator.no_sync(model) if hold else contextlib.nullcontext():
                loss = self.compute_loss(model, self._prepare_inputs(micro))
                if self.is_deepspeed_enabled:
                    self.accelerator.backward(loss, scale_wrt_gas=False)
                else:
                    self.accelerator.backward(loss)
            total += loss.detach()
        self._pending.append(total)
        return total

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Sum of coefficient times token loss over one micro-batch, times the number of processes."""
        coefficients = inputs["coefficients"]
        self._learnt = learnt_positions(coefficients)
        outputs = model(**{key: value for key, value in inputs.items() if key != "coefficients"}, use_cache=False)
        loss = weighted_nll(outputs.logits, inputs["input_ids"], coefficients) * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    def _only_learnt(self, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Before the output layer: keep the hidden states [learnt, hidden] whose next token is learnt."""
        return inputs if self._learnt is None else (inputs[0][self._learnt],)

    # Checkpoints: whole or not at all.

    def run(self) -> float:
        """Train to the plan's end from the newest whole checkpoint; returns the seconds of this call."""
        checkpoint = newest_whole(self._job.checkpoints)
        self.accelerator.wait_for_everyone()
        if checkpoint is not None:
            self._losses = json.loads((checkpoint / LOSSES).read_text(encoding="utf-8"))
        if self.is_world_process_zero():
            for folder in folders(self._job.checkpoints):
                if folder != checkpoint and (checkpoint is None or not is_whole(folder)):
                    shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()
        started = time.monotonic()
        self._resumed_at = len(self._losses)
        if self._resumed_at < len(self._plan.steps):
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        self.settle()
        return time.monotonic() - started

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.settle()
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if not self.is_world_process_zero():
            return
        folder = self._job.checkpoints / f"checkpoint-{self.state.global_step}"
        (folder / LOSSES).write_text(json.dumps(self._losses), encoding="utf-8")
        seal(folder)
        whole = [one for one in folders(self._job.checkpoints) if is_whole(one)]
        for old in whole[: -self._job.params.save_total_limit]:
            shutil.rmtree(old)

    def settle(self) -> None:
        """Turn the pending steps' losses into numbers, summed over processes (all processes call this together)."""
        if not self._pending:
            return
        shares = torch.stack(self._pending)
        self._pending = []
        self._losses += [float(loss) for loss in self.accelerator.reduce(shares, reduction="mean").tolist()]

    # Results.

    def write_model(self, out_dir: Path) -> None:
        """Write weights and config in the training dtype; adapters are merged into the full weights first."""
        params = self._job.params
        if params.lora is not None:
            adapter = self._job.checkpoints / "adapter"
            self.save_model(str(adapter))
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                merge_adapter(self._job.model_dir, adapter, params).save_pretrained(out_dir)
            return
        model = self.accelerator.unwrap_model(self.model)
        state = self.accelerator.get_state_dict(self.model_wrapped) if self.is_deepspeed_enabled else None
        if state is None:
            model.to(getattr(torch, params.dtype))
        if self.is_world_process_zero():
            model.config.use_cache = True
            model.save_pretrained(out_dir, state_dict=state)

    def report(self, seconds: float, rope_factor: float | None) -> TrainReport:
        """What was trained, and how the loss went."""
        plan, every = self._plan, self._job.params.logging_steps
        curve = []
        for start in range(0, len(self._losses), every):
            window = self._losses[start : start + every]
            curve.append((start + len(window), sum(window) / len(window)))
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
            loss=curve,
            rope_factor=rope_factor,
            timing=Timing(
                seconds=seconds,
                tokens_per_second=tokens_here / max(seconds, 1e-9),
                resumed_at=self._resumed_at,
            ),
        )

    def micro_batches(self, number: int) -> list[dict[str, torch.Tensor]]:
        """Tensors of this process's share of step ``number``."""
        step = self._plan.steps[number]
        scales = dict(zip(step.examples, self._scales(number), strict=True))
        share = step.shares[self.args.process_index]
        return [render(micro, self._examples, scales, self._pad_id, self._job.params.attention) for micro in share]

    def _scales(self, number: int) -> list[float]:
        batch = [self._examples[index] for index in self._plan.steps[number].examples]
        return example_scales(batch, self._job.params.reduction, self._job.weight_normalization)

    def _mean_weight(self) -> float:
        total = 0.0
        for number, step in enumerate(self._plan.steps):
            batch = [self._examples[index] for index in step.examples]
            total += effective_weight(batch, self._scales(number)) * len(batch)
        return total / max(1, self._plan.examples)


class _Steps(Dataset):
    """The plan as a data set: item n is this process's share of step n."""

    def __init__(self, trainer: WeightedTrainer) -> None:
        self._trainer = trainer

    def __len__(self) -> int:
        return len(self._trainer._plan.steps)

    def __getitem__(self, number: int) -> list[dict[str, torch.Tensor]]:
        return self._trainer.micro_batches(number)


class _EveryStep(TrainerCallback):
    """Asks for a checkpoint every ``save_steps`` (not after the last step: the model itself follows), and reports."""

    def __init__(self, trainer: WeightedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = self._trainer.model_wrapped
        if isinstance(model, DistributedDataParallel) and args.use_cpu and args.world_size > 2:
            model.register_comm_hook(None, lambda state, bucket: _mean_in_order(bucket.buffer()))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        params, trainer = self._trainer._job.params, self._trainer
        control.should_save = state.global_step % params.save_steps == 0 and state.global_step < state.max_steps
        if state.global_step % params.logging_steps == 0 or state.global_step == state.max_steps:
            trainer.settle()
        if trainer._progress is not None and trainer.is_world_process_zero():
            note = f"loss {trainer._losses[-1]:.4f}" if trainer._losses else ""
            trainer._progress(state.global_step, state.max_steps, note)
        return control


def _mean_in_order(mine: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The processes' gradients added up in their order.

    A ring of three or more adds in an order that depends on a gradient's place in its bucket, and DDP lays buckets out
    anew after the first step: a resumed run would end with other last bits. (Two numbers have only one sum.)
    """
    shares = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    work = torch.distributed.all_gather(shares, mine, async_op=True)

    def mean(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.wait()
        total = shares[0]
        for share in shares[1:]:
            total += share
        return total.div_(len(shares))

    return work.get_future().then(mean)


def _check_hardware(params: FinetuneParams) -> None:
    if params.device == "cuda" and not torch.cuda.is_available():
        raise UserError("finetune.device: cuda, but torch finds no GPU here; set cpu, or install torch's build for it.")
    if params.device == "cpu" and params.tf32:
        raise UserError("finetune.tf32: only GPUs have it; remove the line or set device: cuda.")
    if params.attention == "flash_attention_2" and (params.device == "cpu" or params.dtype == "float32"):
        raise UserError("finetune.attention: flash_attention_2 needs device: cuda and dtype: bfloat16; else set sdpa.")


def _check_vocabulary(model: Any, examples: Sequence[EncodedExample], where: Path) -> None:
    known = int(model.config.vocab_size)
    highest = max((max(example.ids) for example in examples), default=0)
    if highest >= known:
        raise UserError(
            f"{where}: the tokenizer writes id {highest}, but the model knows only {known} ids; "
            "put the model's own tokenizer files beside its weights."
        )


def _arguments(job: Job) -> TrainingArguments:
    params = job.params
    schedule = "constant_with_warmup" if params.schedule == "constant" else params.schedule
    return TrainingArguments(
        output_dir=str(job.checkpoints),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=params.lr,
        lr_scheduler_type=schedule,
        warmup_steps=params.warmup_ratio,
        weight_decay=params.weight_decay,
        adam_beta1=params.betas[0],
        adam_beta2=params.betas[1],
        max_grad_norm=params.grad_clip,
        optim="adamw_torch_fused",
        bf16=params.dtype == "bfloat16",
        tf32=True if params.tf32 else None,
        activation_checkpointing=params.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if params.gradient_checkpointing else None,
        use_cpu=params.device == "cpu",
        seed=job.seed % 2**32,
        logging_steps=params.logging_steps,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=params.report_to,
        disable_tqdm=True,
        log_level="error",
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        deepspeed=zero_config(params) if params.launcher.kind == "deepspeed" else None,
    )
