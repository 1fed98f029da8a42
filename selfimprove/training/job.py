"""One fine-tuning run inside one process: encode, plan, load, train or resume, save, report.

``launch.finetune`` calls it directly, or in every process of a torchrun or DeepSpeed launch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.training_args import TrainingArguments
from transformers.utils import logging as hf_logging

from selfimprove.chat import ChatFormat
from selfimprove.errors import UserError
from selfimprove.records import Example, Record
from selfimprove.seeds import key_bits
from selfimprove.training.batches import PlannedBatches
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample, encode_examples
from selfimprove.training.export import save_merged, save_model
from selfimprove.training.objective import batch_scale
from selfimprove.training.packing import Plan, plan_steps
from selfimprove.training.report import DataCounters, Timing, TrainReport
from selfimprove.training.trainer import PackedTrainer, ProgressHook, prune_checkpoints, whole_checkpoints
from selfimprove.training.zero import zero_config


class TrainJob(Record):
    """Everything a process needs to know, as the launcher writes it to ``job.json``. ``threads`` are per process."""

    model_dir: Path
    out_dir: Path
    scratch: Path
    cfg: FinetuneParams
    seed: int
    threads: int
    weight_normalization: Literal["none", "batch"] = "none"


def run_job(job: TrainJob, examples: Sequence[Example], progress: ProgressHook | None = None) -> TrainReport:
    """Train and write the model folder (process 0 writes; every process returns the same report, clock apart).

    Raises:
        UserError: nothing to train on, tokenizer and model do not fit, a package or device that the params need is
            missing.
    """
    started = time.monotonic()
    cfg = job.cfg
    check_environment(cfg)
    chat = ChatFormat.load(job.model_dir, cfg.chat_template)
    encoded, counters = encode_examples(examples, chat, cfg.max_length)
    if not encoded:
        raise UserError(
            f"finetune: none of {counters.examples} examples can be trained on ({counters.dropped_empty} without a "
            f"weight, {counters.dropped_too_long} longer than max_length {cfg.max_length}); mend the data or max_length."
        )
    with _machine(job):
        arguments = training_arguments(job)
        flash = cfg.attention == "flash_attention_2"
        plan = plan_steps(
            [len(example) for example in encoded],
            batch_size=cfg.batch_size,
            epochs=cfg.epochs,
            max_tokens=cfg.max_tokens,
            micro_batch_tokens=cfg.micro_batch_tokens,
            row_tokens=cfg.micro_batch_tokens if flash else cfg.row_tokens,
            world_size=arguments.world_size,
            seed=job.seed,
        )
        arguments.gradient_accumulation_steps = plan.accumulation
        arguments.max_steps = len(plan.steps)
        arguments.warmup_steps = math.ceil(cfg.warmup_ratio * len(plan.steps))
        model, rope = _load_model(job, chat)
        batches = PlannedBatches(
            encoded, plan, rank=arguments.process_index, pad_id=chat.pad_id, masks="none" if flash else "block",
            reduction=cfg.reduction, normalization=job.weight_normalization,
        )  # fmt: skip
        if arguments.process_index == 0:
            _claim_scratch(job, encoded, arguments.world_size)
        trainer = PackedTrainer(model, arguments, batches, keep=cfg.save_total_limit, progress=progress)
        trainer.accelerator.wait_for_everyone()
        checkpoint = next(reversed(whole_checkpoints(job.scratch)), None)
        begun = time.monotonic()
        trainer.train_from(checkpoint)
        trained = time.monotonic() - begun
        losses = trainer.step_losses()
        if cfg.lora is None:
            save_model(trainer, job)
        else:
            save_merged(trainer, job)
        trainer.accelerator.wait_for_everyone()
    report = _report(job, encoded, plan, counters, losses)
    report.rope_scaling = rope
    resumed = int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0
    read = sum(len(encoded[index]) for step in plan.steps[resumed:] for index in step.examples)
    report.timing = Timing(
        seconds=time.monotonic() - started,
        train_seconds=trained,
        tokens_per_second=read / trained,
        resumed_from_step=resumed,
    )
    return report


def check_environment(cfg: FinetuneParams) -> None:
    """Refuse params that this machine cannot honour, before any work is done.

    Raises:
        UserError: names the key and the remedy.
    """
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "finetune.device is cuda, but torch sees no GPU; set it to cpu or install a CUDA build of torch."
        )
    needs = []
    if cfg.attention == "flash_attention_2":
        needs.append(("flash_attn", "flash-attn", "finetune.attention: flash_attention_2", "attention: sdpa"))
        if cfg.dtype != "bfloat16":
            raise UserError("finetune.attention: flash_attention_2 computes in bfloat16 only; set dtype: bfloat16.")
    if cfg.lora is not None and cfg.lora.quantize != "none":
        key = f"finetune.lora.quantize: {cfg.lora.quantize}"
        needs.append(("bitsandbytes", "bitsandbytes", key, "quantize: none"))
    if cfg.report_to != "none":
        needs.append((cfg.report_to, cfg.report_to, f"finetune.report_to: {cfg.report_to}", "report_to: none"))
    for module, package, key, otherwise in needs:
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{key} needs the package {package}; install it, or set {otherwise}.")


def training_arguments(job: TrainJob) -> TrainingArguments:
    """HF's arguments for our params. The plan's length and accumulation are filled in when it is known.

    Under torchrun this also joins the process group; with ZeRO-3 it must come before the model is loaded, which is
    then loaded in shards.
    """
    cfg = job.cfg
    launcher = cfg.launcher
    cuda = cfg.device == "cuda"
    distributed = launcher.kind != "single"
    return TrainingArguments(
        output_dir=str(job.scratch),
        max_steps=1,
        per_device_train_batch_size=1,
        learning_rate=cfg.lr,
        lr_scheduler_type="constant_with_warmup" if cfg.schedule == "constant" else cfg.schedule,
        weight_decay=cfg.weight_decay,
        adam_beta1=cfg.betas[0],
        adam_beta2=cfg.betas[1],
        max_grad_norm=cfg.grad_clip,
        optim="adamw_torch" if launcher.kind == "deepspeed" else "adamw_torch_fused",
        bf16=cfg.dtype == "bfloat16",
        tf32=cfg.tf32 if cuda else None,
        use_cpu=not cuda,
        ddp_backend=("nccl" if cuda else "gloo") if distributed else None,
        ddp_find_unused_parameters=False if distributed else None,
        deepspeed=zero_config(cfg) if launcher.kind == "deepspeed" else None,
        activation_checkpointing=cfg.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if cfg.gradient_checkpointing else None,
        save_strategy="steps",
        save_steps=cfg.save_steps,
        logging_strategy="no" if cfg.report_to == "none" else "steps",
        logging_steps=cfg.logging_steps,
        logging_nan_inf_filter=False,
        report_to=cfg.report_to,
        disable_tqdm=True,
        dataloader_pin_memory=cuda,
        seed=key_bits("training", job.seed) % 2**32,
    )


def load_base(job: TrainJob, *, quantize: bool) -> tuple[Any, float]:
    """The model of ``model_dir`` ready to train, and the linear RoPE factor that ``max_length`` made necessary.

    Like the released trainer, a ``max_length`` beyond the model's positions stretches them by a whole factor; the
    factor is stored in the config, so the next iteration finds it done.
    """
    cfg = job.cfg
    if not (job.model_dir / "config.json").is_file():
        raise UserError(f"{job.model_dir} holds no model (config.json is missing); run the stage that writes it.")
    config = AutoConfig.from_pretrained(job.model_dir, trust_remote_code=cfg.trust_remote_code)
    factor = 1
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None)
    if positions and rope and cfg.max_length > positions:
        factor = math.ceil(cfg.max_length / positions)
        before = float(rope.get("factor", 1.0)) if rope.get("rope_type", "default") == "linear" else 1.0
        if rope.get("rope_type", "default") not in ("default", "linear"):
            raise UserError(
                f"finetune.max_length {cfg.max_length} exceeds the {positions} positions of {job.model_dir}, whose "
                f"{rope['rope_type']!r} RoPE is scaled already; set max_length to {positions} at most."
            )
        config.rope_parameters = {**rope, "rope_type": "linear", "factor": before * factor}
        config.max_position_embeddings = positions * factor
    extra: dict[str, Any] = {}
    if quantize and cfg.lora is not None and cfg.lora.quantize != "none":
        from transformers import BitsAndBytesConfig

        extra["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=cfg.lora.quantize == "8bit",
            load_in_4bit=cfg.lora.quantize == "4bit",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    # Full fine-tuning keeps float32 weights under bf16 autocast; frozen weights under LoRA need no such precision.
    half = cfg.dtype == "bfloat16" and cfg.lora is not None and quantize
    model = AutoModelForCausalLM.from_pretrained(
        job.model_dir,
        config=config,
        dtype=torch.bfloat16 if half else torch.float32,
        attn_implementation=cfg.attention,
        trust_remote_code=cfg.trust_remote_code,
        **extra,
    )
    return model, float(factor)


def _load_model(job: TrainJob, chat: ChatFormat) -> tuple[Any, float]:
    torch.manual_seed(key_bits("training", job.seed) % 2**63)
    model, factor = load_base(job, quantize=True)
    if model.config.vocab_size < chat.vocab_size:
        raise UserError(
            f"{job.model_dir}: the tokenizer has {chat.vocab_size} tokens, the model only {model.config.vocab_size}; "
            "use the tokenizer that the model was made with."
        )
    lora = job.cfg.lora
    if lora is None:
        return model, factor
    from peft import prepare_model_for_kbit_training

    from selfimprove.training.export import with_adapters

    if lora.quantize != "none":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=job.cfg.gradient_checkpointing)
    elif job.cfg.gradient_checkpointing:
        model.enable_input_require_grads()
    return with_adapters(model, lora), factor


def _claim_scratch(job: TrainJob, encoded: Sequence[EncodedExample], world: int) -> None:
    # Checkpoints of another run (other data, params or model) are never resumed from (spec rise §5, trap 17).
    digest = hashlib.blake2b(digest_size=16)
    digest.update(job.model_copy(update={"out_dir": Path()}).model_dump_json().encode())
    digest.update(str(world).encode())
    for example in encoded:
        digest.update(json.dumps([example.ids, example.weights]).encode())
    job.scratch.mkdir(parents=True, exist_ok=True)
    mark = job.scratch / "run.txt"
    if not mark.is_file() or mark.read_text(encoding="utf-8") != digest.hexdigest():
        prune_checkpoints(job.scratch, 0)
        draft = mark.with_suffix(".tmp")
        draft.write_text(digest.hexdigest(), encoding="utf-8")
        os.replace(draft, mark)


@contextlib.contextmanager
def _machine(job: TrainJob) -> Iterator[None]:
    # Threads and determinism are the process's, not the run's: put back what was there.
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(job.threads)
    if job.cfg.device == "cpu":
        torch.use_deterministic_algorithms(True)
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def _report(
    job: TrainJob, encoded: Sequence[EncodedExample], plan: Plan, counters: DataCounters, losses: Sequence[float]
) -> TrainReport:
    given, used, trained = [], [], 0
    for step in plan.steps:
        batch = [encoded[index] for index in step.examples]
        scale = batch_scale(batch, job.weight_normalization)
        given.extend(example.weight for example in batch)
        used.extend(example.weight * scale for example in batch)
        trained += sum(example.trained for example in batch)
    every = job.cfg.logging_steps
    windows = [losses[start : start + every] for start in range(0, len(losses), every)]
    return TrainReport(
        steps=len(plan.steps),
        epochs=plan.epochs,
        tokens=plan.cells,
        real_tokens=plan.real_tokens,
        trained_tokens=trained,
        padding=plan.padding,
        mean_weight=math.fsum(given) / len(given),
        effective_weight=math.fsum(used) / len(used),
        losses=[
            (min((number + 1) * every, len(losses)), math.fsum(window) / len(window))
            for number, window in enumerate(windows)
        ],
        counters=counters,
    )
