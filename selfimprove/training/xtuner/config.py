"""XTuner's configuration from our params: the recipe's settings, our data, our checkpoints. Plain text, without torch.

Agent-R appears to be trained with a copy of XTuner's stock full-parameter recipe (docs/agent-r.md, A28). As params ::

    finetune:
      backend: xtuner
      device: cuda
      dtype: float16                            # or bfloat16
      epochs: 3.0
      batch_size: 16                            # on one GPU: 16 micro-batches of one conversation are accumulated
      max_length: 8192
      lr: 2e-5
      schedule: cosine
      warmup_ratio: 0.03
      launcher: {kind: deepspeed, zero_stage: 2}

XTuner provides the loop, model, optimiser, schedule, mixed precision, ZeRO-2 and checkpoints. Its input data are ours
(``parts``), so its options for epochs, shuffling, templates and packing are not used.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfimprove.training.config import FinetuneParams, LoraConfig
from selfimprove.training.zero import zero_config

START_FACTOR = 1e-5
"""Share of the learning rate at which the recipe's warm-up starts."""


class XtunerRun(BaseModel):
    """One run, as stored in ``run.json`` for the launcher; paths are absolute.

    ``iterations`` is the number of micro-batches that each process computes, padding included. Every optimiser step
    accumulates ``accumulation`` of them.
    """

    folder: Path
    """contains config.py, zero.json, the data, the initial model, the checkpoints and finally the trained weights"""
    params: FinetuneParams
    seed: int
    threads: int
    iterations: int
    accumulation: int

    @property
    def model(self) -> Path:
        """The initial model in the format of transformers 4.48."""
        return self.folder / "start"

    @property
    def trained(self) -> Path:
        """Folder of the trained float32 weights or adapters, written by the launcher."""
        return self.folder / "trained"


def schedulers(params: FinetuneParams, iterations: int) -> list[dict[str, Any]]:
    """The recipe's learning rate schedule, updated after every micro-batch: linear warm-up, then decay to 0.

    A warm-up of fewer than two micro-batches is omitted, because mmengine would stay at its start value forever.
    """
    warm = round(params.warmup_ratio * iterations)
    warm = warm if warm > 1 else 0
    stages: list[dict[str, Any]] = []
    if warm:
        stages.append({"type": "LinearLR", "start_factor": START_FACTOR, "begin": 0, "end": warm})
    if params.schedule == "cosine":
        stages.append({"type": "CosineAnnealingLR", "eta_min": 0.0, "begin": warm, "end": iterations})
    elif params.schedule == "linear":
        # One more than the last iteration, which would otherwise have a learning rate of 0.
        stages.append(
            {"type": "LinearLR", "start_factor": 1.0, "end_factor": 0.0, "begin": warm, "end": iterations + 1}
        )
    return [{**stage, "by_epoch": False} for stage in stages]


def accumulation(params: FinetuneParams, largest_step: int) -> int:
    """Number of micro-batches that each process accumulates in a step of at most ``largest_step`` examples."""
    return math.ceil(largest_step / params.launcher.processes)


def zero2_text(params: FinetuneParams) -> str:
    """DeepSpeed's configuration file: our ZeRO-2 settings, and float16 with a dynamic loss scale if configured.

    XTuner fills in the micro-batch size, accumulation and clipping, but not the total batch size.
    """
    config = zero_config(params)
    del config["train_batch_size"]
    config["fp16"] = {"enabled": params.dtype == "float16", "initial_scale_power": 16}
    return json.dumps(config, indent=2) + "\n"


def config_text(run: XtunerRun) -> str:
    """The config file (Python, for mmengine); values are written as literals, never as code."""
    params = run.params
    wrapper, precision = "OptimWrapper", ""
    if params.dtype != "float32":
        scale = "dynamic" if params.dtype == "float16" else 1.0
        wrapper, precision = "AmpOptimWrapper", f"dtype={params.dtype!r}, loss_scale={scale!r}, "
    every = max(1, params.logging_steps * run.accumulation)
    return f"""\
# Written by selfimprove.training.xtuner.config from the finetune params; run by selfimprove.training.xtuner.launch.
from mmengine.dataset import DefaultSampler
from mmengine.hooks import DistSamplerSeedHook, IterTimerHook, LoggerHook, ParamSchedulerHook
from mmengine.optim import AmpOptimWrapper, CosineAnnealingLR, LinearLR, OptimWrapper
from peft import LoraConfig
from torch.optim import AdamW
from transformers import AutoModelForCausalLM
from xtuner.engine.runner import TrainLoop
from xtuner.model import SupervisedFinetune

from selfimprove.training.xtuner.parts import MicroBatches, StepHook, collate

model = dict(
    type=SupervisedFinetune,
    use_varlen_attn=False,
    use_activation_checkpointing={params.gradient_checkpointing!r},
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path={str(run.model)!r},
        attn_implementation={params.attention!r},
        trust_remote_code={params.trust_remote_code!r},
        use_safetensors=True,
        local_files_only=True,
    ),
    lora={_lora_text(params.lora)},
)
train_dataloader = dict(
    batch_size=1,
    num_workers=0,
    dataset=dict(type=MicroBatches, folder={str(run.folder)!r}),
    sampler=dict(type=DefaultSampler, shuffle=False),
    collate_fn=dict(type=collate),
)
train_cfg = dict(type=TrainLoop, max_iters={run.iterations})
optim_wrapper = dict(
    type={wrapper},
    {precision}accumulative_counts={run.accumulation},
    optimizer=dict(type=AdamW, lr={params.lr!r}, betas={tuple(params.betas)!r}, weight_decay={params.weight_decay!r}),
    clip_grad=dict(max_norm={params.grad_clip!r}, error_if_nonfinite=False),
)
param_scheduler = [
{_schedulers_text(schedulers(params, run.iterations))}]
default_hooks = dict(
    timer=dict(type=IterTimerHook),
    logger=dict(type=LoggerHook, log_metric_by_epoch=False, interval={every}),
    param_scheduler=dict(type=ParamSchedulerHook),
    checkpoint=None,  # the hook below writes them
    sampler_seed=dict(type=DistSamplerSeedHook),
)
custom_hooks = [
    dict(
        type=StepHook,
        accumulation={run.accumulation},
        every={params.save_steps},
        keep={params.save_total_limit},
        seed={run.seed},
        overflows={params.dtype == "float16"!r},  # its loss scale is lowered when a gradient overflows
        priority="LOWEST",
    )
]
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend={"nccl" if params.device == "cuda" else "gloo"!r}),
)
randomness = dict(seed={run.seed % 2**32}, deterministic=False)
log_processor = dict(by_epoch=False)
log_level = "INFO"
visualizer = None
load_from = None
resume = False
"""


def _lora_text(lora: LoraConfig | None) -> str:
    if lora is None:
        return "None"
    targets = None if lora.targets == "all-linear" else lora.targets
    return (
        f"dict(type=LoraConfig, r={lora.rank}, lora_alpha={lora.alpha}, lora_dropout={lora.dropout!r}, "
        f"target_modules={targets!r}, bias='none', task_type='CAUSAL_LM')"
    )


def _schedulers_text(rates: Sequence[Mapping[str, Any]]) -> str:
    settings = [", ".join(f"{key}={value!r}" for key, value in rate.items() if key != "type") for rate in rates]
    return "".join(f"    dict(type={rate['type']}, {said}),\n" for rate, said in zip(rates, settings, strict=True))
