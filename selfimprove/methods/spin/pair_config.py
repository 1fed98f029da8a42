"""Settings of training on pairs; the defaults are those of the SPIN paper and its released scripts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfimprove.training.config import FinetuneParams


class PairParams(FinetuneParams):
    """Self-play against the opponent, which is the initial model of the training. ``batch_size`` counts pairs."""

    backend: Literal["trainer"] = "trainer"
    loss: Literal["sigmoid", "hinge"] = Field(default="sigmoid", description="-logsigmoid(beta h), or relu(1 - beta h)")
    beta: float = Field(default=0.1, gt=0, description="the paper's lambda; 5.0 in its last iteration")
    reference_free: bool = Field(default=False, description="omit the opponent's term from h")
    average: bool = Field(default=False, description="score a sequence by the mean over its tokens instead of the sum")
    sft_weight: float = Field(
        default=0.0,
        ge=0,
        description="weight of an added SFT term, the negative log-likelihood per token of the real side; the paper "
        "has none",
    )
    optimizer: Literal["rmsprop", "adamw"] = Field(default="rmsprop", description="betas apply to adamw only")
    overlong: Literal["drop", "truncate"] = Field(
        default="drop", description="truncate: shortens the prompt first, equally for both sides, then the responses"
    )
    truncation: Literal["keep_end", "keep_start"] = Field(
        default="keep_end", description="part that is kept of a prompt longer than max_prompt_length"
    )
    max_length: int = Field(
        default=2048, ge=8, description="maximum tokens of the prompt and the longer response; see overlong"
    )
    max_prompt_length: int | None = Field(
        default=None, ge=1, description="used by overlong: truncate; null: half of max_length"
    )
    other_opponent: bool = Field(
        default=False,
        description="allow an opponent that is not the initial model: not SPIN, and the first loss is not checked",
    )
    epochs: float = Field(default=2.0, ge=0, description="passes over the pairs; 0 leaves the model unchanged")
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(
        default=5e-7, gt=0, description="the paper's value, for full fine-tuning of 7B; small models need more"
    )
    schedule: Literal["cosine", "linear", "constant"] = "linear"
    warmup_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="fraction of the steps; a single step has no warm-up"
    )
    row_tokens: int = Field(
        default=1024,
        ge=1,
        description="row width in tokens that pairs are packed to; both sides of a pair share one row; 1: each side "
        "has a row of its own",
    )

    @model_validator(mode="after")
    def _leaves_a_response(self) -> PairParams:
        if self.max_prompt_length is not None and self.max_prompt_length >= self.max_length:
            raise ValueError(
                f"max_prompt_length ({self.max_prompt_length}) leaves no room for the response in max_length "
                f"({self.max_length}); lower max_prompt_length"
            )
        return self
