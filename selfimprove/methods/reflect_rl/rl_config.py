"""Settings of reinforcement learning, whose defaults follow the paper and its code (docs/reflect-rl.md, L50)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from selfimprove.core.params import Section
from selfimprove.training.config import FinetuneParams, LauncherConfig, LoraConfig, below_one


class ActingParams(Section):
    """How a policy chooses actions, and how reflections are generated: the same in training and evaluation."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, description="0: all; the original's value is 99999")
    shrink_head: bool = Field(
        default=True, description="the output layer has one row per label; false: one per vocabulary token"
    )
    mask_invalid: bool = Field(
        default=False, description="sample only from the labels of the current state; false: from all labels"
    )
    reflect_prob: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="reflection probability, drawn once per step for the whole batch; else R is ''",
    )
    reflect_temperature: float = Field(
        default=1.0, ge=0, description="0: greedy; identical states are then processed once"
    )
    reflect_top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=100, ge=1, description="maximum number of tokens in a reflection")


class CriticParams(Section):
    """V(s): a head on the last hidden state at the decision. No gradient flows from it into the body."""

    kind: Literal["linear", "mlp"] = "linear"
    shared: bool = Field(
        default=False, description="true: head on the policy's current body; false: on its initial one"
    )
    lr: float = Field(default=2e-4, gt=0)
    every: int = Field(
        default=5, ge=1, description="number of policy updates per critic update; updates on replayed episodes count"
    )
    epochs: int = Field(default=5, ge=1, description="passes over the data collected since the critic's last update")


class RLParams(ActingParams):
    """Policy gradient or PPO on whole episodes. A round plays ``episodes`` tasks and trains on them, then on a
    sample of ``replay_episodes`` successes; each of the two counts as one step of gradient accumulation.
    """

    algorithm: Literal["pg", "ppo"] = "pg"
    max_steps: int = Field(default=20000, ge=1, description="number of rounds")
    max_train_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="stop after the round that reaches this token count, in which a token in play counts as a "
        "third; max_steps is then the upper limit",
    )
    episodes: int = Field(
        default=4, ge=1, le=100_000, description="episodes played per round, concurrently and over all processes"
    )
    curriculum: bool = Field(default=False, description="train level by level; false: all tasks at the default level")
    replay_buffer: int = Field(default=50, ge=0, description="number of successful episodes kept; 0: no replay")
    replay_episodes: int = Field(
        default=1, ge=1, description="number of episodes drawn from the replay buffer per round, with replacement"
    )
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    lr: float = Field(default=2e-4, gt=0)
    schedule: Literal["constant", "linear"] = Field(default="constant", description="linear: decays to 0 at max_steps")
    weight_decay: float = Field(default=0.001, ge=0)
    betas: Annotated[tuple[float, float], AfterValidator(below_one)] = Field(default=(0.9, 0.999), strict=False)
    grad_clip: float = Field(default=0.3, gt=0)
    entropy_coef: float = Field(default=0.0, ge=0, description="beta: the cost that 1 nat of entropy offsets")
    ppo_clip: float = Field(default=0.1, gt=0)
    ppo_epochs: int = Field(default=3, ge=1)
    critic: CriticParams | None = None

    row_tokens: int = Field(
        default=512, ge=1, description="row width in tokens that prompts are packed to; 1: each has a row of its own"
    )
    micro_batch_tokens: int = Field(default=8192, ge=1, description="tokens per micro-batch and process in an update")
    dtype: Literal["float32", "bfloat16"] = "float32"
    tf32: bool = False
    attention: Literal["sdpa", "eager"] = "sdpa"
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None
    launcher: LauncherConfig = LauncherConfig()
    device: Literal["cpu", "cuda"] = "cpu"
    trust_remote_code: bool = False
    save_steps: int = Field(default=100, ge=1)
    save_total_limit: int = Field(default=2, ge=1)
    log_episodes: int = Field(
        default=1, ge=0, description="number of episodes per round that are logged step by step in log.jsonl"
    )

    @model_validator(mode="after")
    def _consistent(self) -> RLParams:
        if self.algorithm == "ppo" and self.critic is None:
            raise ValueError("algorithm 'ppo' needs a critic; add critic: {}")
        if self.temperature == 0:
            raise ValueError("temperature 0 does not explore; set 1")
        calls = self.max_steps * (2 if self.replay_buffer else 1)
        if self.gradient_accumulation_steps > calls:
            raise ValueError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} trains nothing, since max_steps "
                f"{self.max_steps} accumulates at most {calls} times; lower it, or raise max_steps"
            )
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                "lora.dropout must be 0: updates need the same probabilities as play, which uses no dropout"
            )
        if self.lora is None and self.dtype != "float32":
            raise ValueError(f"dtype {self.dtype!r} works only with adapters; add lora, or set float32")
        if self.launcher.kind not in ("single", "fork"):
            raise ValueError(
                f"launcher kind {self.launcher.kind!r}: reinforcement learning supports only single and fork"
            )
        if self.tf32 and self.device == "cpu":
            raise ValueError("tf32 works only with device: cuda; remove it")
        if self.launcher.kind == "fork" and self.device != "cpu":
            raise ValueError("launcher kind 'fork' works only with device: cpu; use single on a GPU")
        return self

    def loading(self, max_length: int) -> FinetuneParams:
        """Settings for loading the model, in the form that fine-tuning uses."""
        return FinetuneParams(
            max_length=max_length,
            row_tokens=self.row_tokens,
            dtype=self.dtype,
            attention=self.attention,
            gradient_checkpointing=self.gradient_checkpointing,
            lora=self.lora,
            device=self.device,
            trust_remote_code=self.trust_remote_code,
        )
