"""The job specification of a training process, and its setup: threads, process group, Trainer's arguments."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from transformers.training_args import TrainingArguments
from transformers.utils.import_utils import enable_tf32
from transformers.utils.logging import disable_progress_bar

from selfimprove.core.errors import UserError
from selfimprove.core.memory import gpu_memory
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import PackingPlan, make_plan
from selfimprove.training.rows import END_TO_END
from selfimprove.training.zero import read_tensors_only, zero_config


class RunJob(BaseModel):
    """Specification of a training process, without its data, for any objective; workers read it from a file."""

    model_dir: Path
    out_dir: Path
    checkpoints: Path
    params: FinetuneParams
    seed: int
    threads: int
    max_train_tokens: int | None = None
    validation: int = 0
    """number of examples or pairs at the end that are only used for validation"""


@contextlib.contextmanager
def own_threads(job: RunJob) -> Iterator[None]:
    """Check the settings, and set torch to the job's number of threads within the context.

    Raises:
        UserError: this machine cannot run the settings, or the GPU's memory is exhausted within the context.
    """
    check_hardware(job.params)
    disable_progress_bar()  # the stage has its own
    if job.params.device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # accelerate imports DeepSpeed, which would probe and warn
    if job.params.tf32:
        enable_tf32(True)  # as Trainer will, but SPIN's opponent is scored before
    threads_before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        with gpu_memory("train", _less_memory(job.params)):
            yield
    finally:
        torch.set_num_threads(threads_before)


def _less_memory(params: FinetuneParams) -> str:
    """How to train with less memory, for an error message."""
    recompute = "" if params.gradient_checkpointing else ", or set train.gradient_checkpointing: true"
    return (
        f"lower train.micro_batch_tokens ({params.micro_batch_tokens}) and train.row_tokens ({params.row_tokens})"
        f"{recompute}"
    )


def join(job: RunJob, **optimiser: Any) -> TrainingArguments:
    """Join the process group (if any), before ZeRO-3 shards the model on loading, and return Trainer's arguments.

    ``optimiser`` replaces AdamW's name and settings.
    """
    arguments = _arguments(job, optimiser)
    _ = arguments.world_size  # joins the process group as a side effect
    if job.params.launcher.kind == "deepspeed":
        import deepspeed

        read_tensors_only()
        # DeepSpeed would compile a shared-memory helper, which takes a minute and a compiler, in a cache shared by all
        # runs. A run killed meanwhile would leave a lock there on which every later run waits forever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # On CPU accelerate does not initialise DeepSpeed's own process group, and sharding would assume one process.
        deepspeed.init_distributed(dist_backend="gloo" if job.params.device == "cpu" else "nccl")
    return arguments


def plan_of(job: RunJob, lengths: Sequence[int], *, world_size: int = 1, whole_epochs: bool = False) -> PackingPlan:
    """The plan of steps over items with these numbers of tokens; validation items at the end are excluded.

    Raises:
        UserError: the share of an epoch is less than one item.
    """
    params = job.params
    plan = make_plan(
        lengths[: len(lengths) - job.validation],
        batch_size=params.batch_size,
        row_tokens=params.row_tokens,
        micro_batch_tokens=params.micro_batch_tokens,
        seed=job.seed,
        epochs=params.epochs,
        max_tokens=job.max_train_tokens,
        world_size=world_size,
        group_by_length=params.group_by_length,
        whole_epochs=whole_epochs,
        filled=params.attention not in END_TO_END,
    )
    if not plan.steps and params.epochs and job.max_train_tokens is None:
        raise UserError(
            f"train.epochs: {params.epochs:g} of {len(lengths) - job.validation} examples is none; raise it, or set 0 "
            "to pass the model on unchanged."
        )
    return plan


def check_gpu(section: str, device: str) -> None:
    """Raise a ``UserError`` if ``device`` is cuda and there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"{section}.device: cuda, but torch finds no GPU here; set cpu, or install torch's build for it."
        )


def check_hardware(params: FinetuneParams) -> None:
    """Raise a ``UserError`` for settings that this machine cannot run."""
    check_gpu("train", params.device)
    processes = params.launcher.processes
    if params.device == "cuda" and processes > (found := torch.cuda.device_count()):
        raise UserError(
            f"launcher.processes: {processes}, but each needs a GPU of its own, and {found} are visible here; lower "
            "it, or make more visible (JOBS and CUDA_VISIBLE_DEVICES divide them)."
        )
    if params.device == "cpu" and params.tf32:
        raise UserError("train.tf32: only GPUs support it; remove the line or set device: cuda.")
    if params.attention == "flash_attention_2" and (params.device == "cpu" or params.dtype == "float32"):
        raise UserError(
            "train.attention: flash_attention_2 needs device: cuda and dtype: bfloat16; set these, or sdpa."
        )


def check_ids(config: Any, examples: Sequence[EncodedExample], where: Path) -> None:
    """Raise a ``UserError`` for ids outside the vocabulary of a model with this config."""
    known = int(config.get_text_config().vocab_size)
    highest = max((max(example.ids) for example in examples), default=0)
    if highest >= known:
        raise UserError(
            f"{where}: the tokenizer produces id {highest}, but the model has only {known} ids; use the model's own "
            "tokenizer files."
        )


def _arguments(job: RunJob, optimiser: dict[str, Any]) -> TrainingArguments:
    params = job.params
    schedule = "constant_with_warmup" if params.schedule == "constant" else params.schedule
    optimiser = optimiser or {
        "optim": "adamw_torch_fused",
        "adam_beta1": params.betas[0],
        "adam_beta2": params.betas[1],
    }
    arguments = TrainingArguments(
        output_dir=str(job.checkpoints),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=params.lr,
        lr_scheduler_type=schedule,
        warmup_steps=params.warmup_steps or params.warmup_ratio,  # a value below 1 is a ratio
        weight_decay=params.weight_decay,
        max_grad_norm=params.grad_clip,
        bf16=params.dtype == "bfloat16",
        tf32=True if params.tf32 else None,
        gradient_checkpointing=params.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if params.gradient_checkpointing else None,
        use_cpu=params.device == "cpu",
        seed=job.seed % 2**32,
        logging_steps=params.logging_steps,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",  # the stage has its own curves (core/tracking.py)
        disable_tqdm=True,
        log_level="error",
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,  # buffers are constants and equal in all processes
        **optimiser,
        deepspeed=zero_config(params) if params.launcher.kind == "deepspeed" else None,
    )
    # Each process trains on one GPU. If more are visible, Trainer would use DataParallel, which splits packed rows.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
