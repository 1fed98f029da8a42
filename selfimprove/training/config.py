"""Settings of fine-tuning, with the released RISE trainer's defaults where it has any."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from selfimprove.core.params import Section

Reduction = Literal["example_mean", "token_mean"]
Normalization = Literal["none", "batch"]
"""What ``objective.example_scales`` divides by."""


def below_one(betas: tuple[float, float]) -> tuple[float, float]:
    """Validate Adam's decay rates."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"expected two numbers in [0, 1), got {list(betas)}")
    return betas


class LoraConfig(Section):
    """Low-rank adapters. A row keeps only the adapter, which is merged once where its full weights are needed."""

    rank: int = Field(default=16, ge=1, le=65_536)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: list[str] | Literal["all-linear"] = "all-linear"
    quantize: Literal["none", "8bit", "4bit"] = "none"


class LauncherConfig(Section):
    """How training processes are started: in this process, as forks of it that share its threads (CPU, DDP), by
    torchrun (DDP), or by torchrun with DeepSpeed ZeRO.
    """

    kind: Literal["single", "fork", "torchrun", "deepspeed"] = "single"
    processes: int = Field(default=1, ge=1, le=1024, description="number of processes on each node")
    nodes: int = Field(default=1, ge=1, le=1024)
    rendezvous: str | None = Field(
        default=None, description="host:port of node 0, if several nodes are started manually"
    )
    zero_stage: Literal[2, 3] = 3
    offload: bool = Field(
        default=False, description="ZeRO: offload the optimiser state (and the parameters in stage 3) to CPU memory"
    )

    @model_validator(mode="after")
    def _consistent(self) -> LauncherConfig:
        if self.kind == "single" and self.processes * self.nodes > 1:
            raise ValueError("kind 'single' has one process; use fork, torchrun or deepspeed for more")
        if self.kind == "fork" and self.nodes > 1:
            raise ValueError("kind 'fork' supports only one node; use torchrun or deepspeed for more")
        if self.offload and self.kind != "deepspeed":
            raise ValueError("offload needs kind 'deepspeed'; remove it")
        return self


class FinetuneParams(Section):
    """One fine-tuning run. ``batch_size`` is the number of examples per optimiser step, over all processes."""

    backend: Literal["trainer", "xtuner"] = Field(
        default="trainer", description="xtuner: Agent-R's trainer, in its own environment (make env-xtuner)"
    )
    epochs: float = Field(default=1.0, ge=0, description="passes over the data; 0 leaves the model unchanged")
    max_train_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="stop after the step that reaches this token count; epochs is then ignored",
    )
    batch_size: int = Field(default=64, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1, description="tokens per micro-batch and process")
    row_tokens: int = Field(
        default=1024,
        ge=1,
        description="row width in tokens that conversations are packed to; 1: each has a row of its own",
    )
    group_by_length: bool = Field(default=False, description="batch examples of similar length: less padding")
    max_length: int = Field(default=2048, ge=8, description="longer dialogues lose their oldest turns")
    lr: float = Field(default=1e-5, gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_ratio: float = Field(
        default=0.04, ge=0, lt=1, description="fraction of the steps; a single step has no warm-up"
    )
    warmup_steps: int = Field(default=0, ge=0, description="if not 0: number of warmup steps, overrides warmup_ratio")
    weight_decay: float = Field(default=0.0, ge=0)
    betas: Annotated[tuple[float, float], AfterValidator(below_one)] = Field(default=(0.9, 0.999), strict=False)
    grad_clip: float = Field(default=1.0, gt=0)
    validation: float = Field(
        default=0.0, ge=0, lt=1, description="fraction of the data held out and evaluated after each epoch"
    )
    reduction: Reduction = Field(
        default="example_mean", description="example_mean (RISE): mean token loss of each example, then the batch mean"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="float16 (with a loss scale) is for backend xtuner"
    )
    tf32: bool = False
    attention: Literal["sdpa", "eager", "flash_attention_2", "segments"] = Field(
        default="sdpa",
        description="segments: no mask and no padding, fastest on CPUs, on GPUs FlashAttention in bfloat16; "
        "flash_attention_2: a downloaded kernel for GPUs",
    )
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None
    launcher: LauncherConfig = LauncherConfig()
    device: Literal["cpu", "cuda"] = "cpu"
    save_steps: int = Field(default=100, ge=1)
    save_total_limit: int = Field(default=2, ge=1)
    logging_steps: int = Field(default=10, ge=1)
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _forks_are_for_cpus(self) -> FinetuneParams:
        if self.launcher.kind == "fork" and self.device != "cpu":
            raise ValueError("launcher kind 'fork' works only with device: cpu; use torchrun or deepspeed on GPUs")
        return self

    @model_validator(mode="after")
    def _quantised_weights_stay_whole(self) -> FinetuneParams:
        # Users report errors (accelerate issue 3730) or losses ten times too high (bitsandbytes issue 1451) in 8 bits,
        # and whole 4-bit weights on each GPU (DeepSpeed issue 5637). With ZeRO-2 the losses were right.
        sharded = self.launcher.kind == "deepspeed" and self.launcher.zero_stage == 3
        if sharded and self.lora is not None and self.lora.quantize != "none":
            raise ValueError(
                f"lora.quantize {self.lora.quantize!r} does not work with ZeRO-3; set launcher.zero_stage to 2, "
                "or quantize to none"
            )
        return self

    @model_validator(mode="after")
    def _known_to_the_backend(self) -> FinetuneParams:
        if self.backend == "trainer" and self.dtype == "float16":
            raise ValueError("dtype 'float16' works only with backend xtuner; use bfloat16")
        if self.backend == "xtuner" and (missing := unknown_to_xtuner(self)):
            raise ValueError(f"backend 'xtuner' does not support {missing}; change it, or use backend trainer")
        return self


def unknown_to_xtuner(params: FinetuneParams) -> str | None:
    """The first setting that XTuner does not support, phrased for an error message; None if all are supported."""
    launcher = params.launcher
    gpu = params.device == "cuda"
    refusals = {
        f"launcher.kind: {launcher.kind} (single and deepspeed work)": launcher.kind not in ("single", "deepspeed"),
        f"launcher.zero_stage: {launcher.zero_stage} (2 works)": launcher.kind == "deepspeed"
        and launcher.zero_stage != 2,
        f"launcher.nodes: {launcher.nodes} (1 works)": launcher.nodes > 1,
        f"launcher.processes: {launcher.processes} on device: cpu (1 works)": launcher.processes > 1 and not gpu,
        "launcher.offload": launcher.offload,
        f"dtype: {params.dtype} on device: cpu (float32 works)": params.dtype != "float32" and not gpu,
        "tf32": params.tf32,
        "validation": params.validation > 0,
        "warmup_steps": params.warmup_steps > 0,
        f"attention: {params.attention} (sdpa and eager work)": params.attention not in ("sdpa", "eager"),
        "lora.quantize": params.lora is not None and params.lora.quantize != "none",
    }
    return next((name for name, refused in refusals.items() if refused), None)
