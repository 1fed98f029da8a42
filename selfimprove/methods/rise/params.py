"""The ``rise`` section of params.yaml: every option of the method, in the order of the pipeline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfimprove.engines.config import EngineConfig
from selfimprove.envs.arithmetic import Difficulty
from selfimprove.params_base import Section
from selfimprove.training.config import FinetuneParams


class TaskParams(Section):
    """Which problems: how many demonstrations for the first SFT, and the panels to collect, choose and test on."""

    source: Literal["embedded", "gsm8k", "math"] = "embedded"
    demonstrations: int = Field(ge=0)
    train: int = Field(ge=1)
    dev: int = Field(ge=0)
    test: int = Field(ge=1)
    demonstration_difficulty: Difficulty = Difficulty()
    difficulty: Difficulty = Difficulty()


class EnvParams(Section):
    """How an attempt is graded, and the prompt that opens every episode."""

    name: Literal["gsm8k", "math"] = "gsm8k"
    extraction: Literal["robust", "strict"] = "robust"
    equiv: Literal["hendrycks", "extended"] = "hendrycks"
    grade_timeout: float = Field(default=5.0, gt=0, description="seconds a symbolic comparison may take")
    few_shot: bool = Field(default=True, description="open with the paper's worked example")


class GenerateParams(Section):
    """One collection: ``models[t]`` draws ``num_of_samples[t]`` attempts at turn t."""

    problems: int = Field(ge=1, description="how many of the training panel, from its start")
    offset: int = Field(default=0, ge=0, description="panel index to start at")
    limit: int | None = Field(default=None, ge=1, description="debug: only the first so many of those")
    max_turns: int = Field(default=5, ge=1)
    models: list[str]
    num_of_samples: list[int]
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1000, ge=1)
    dialogue_limit: int = Field(default=20, ge=1, description="trailing messages kept; whole pairs")
    concurrency: int = Field(default=512, ge=1, description="episodes in flight")
    resamples: int = Field(default=3, ge=0, description="new draws when every sample of a turn is degenerate")

    @model_validator(mode="after")
    def _one_per_turn(self) -> GenerateParams:
        for key in ("models", "num_of_samples"):
            if len(getattr(self, key)) != self.max_turns:
                raise ValueError(f"{key} needs one entry a turn ({self.max_turns}), has {len(getattr(self, key))}")
        if min(self.num_of_samples) < 1:
            raise ValueError("num_of_samples: every turn needs at least one sample")
        return self


class ConvertParams(Section):
    """Episodes to weighted examples: w = exp(reward / temperature)."""

    criteria: Literal["all", "better", "best", "success"] = "all"
    temperature: float = Field(default=0.4, gt=0)
    only_success: bool = False
    remove_duplication: bool = True
    shuffle: bool = True
    weighted: bool = Field(default=True, description="false: every weight is 1 (the unweighted control)")
    reward_baseline: Literal["none", "problem_mean", "turn_mean"] = "none"
    weight_normalization: Literal["none", "batch"] = "none"
    accumulate_data: bool = Field(default=False, description="add the parent iterations' examples")


class EvaluateParams(Section):
    """Sequential and parallel evaluation without an oracle; the oracle's figure follows from the same episodes."""

    panel: Literal["dev", "test"] = "test"
    limit: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=5, ge=1)
    context_window: int = Field(default=2, ge=1)
    parallel_samples: int = Field(default=5, ge=1)
    oracle: bool = Field(default=False, description="stop at the first right attempt")
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1000, ge=1)
    dialogue_limit: int = Field(default=20, ge=1)
    concurrency: int = Field(default=512, ge=1)


class Iteration(Section):
    """One round of self-improvement from ``init`` ("base" or another iteration)."""

    init: str
    init_from: Literal["previous", "base"] = Field(
        default="previous", description="finetune starts from init's weights, or from the base again"
    )
    generate: GenerateParams
    convert: ConvertParams
    finetune: FinetuneParams
    evaluate: EvaluateParams


class Control(Section):
    """A fair comparison: other data, as much training as the iterations it is compared with."""

    data: Literal["demonstrations", "single_turn", "unweighted"]
    iterations: list[str] = Field(min_length=1, description="whose data and training tokens it matches")
    finetune: FinetuneParams
    evaluate: EvaluateParams


class RiseParams(Section):
    """The whole section."""

    tasks: TaskParams
    env: EnvParams
    engines: dict[str, EngineConfig]
    sft: FinetuneParams
    evaluate: EvaluateParams
    iterations: dict[str, Iteration]
    controls: dict[str, Control] = {}
