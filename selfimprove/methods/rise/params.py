"""The ``rise`` section of params.yaml: every option of the method, in the order of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section, check_answer_room
from selfimprove.engines.config import EngineConfig, check_own_model
from selfimprove.envs.interface import Problem
from selfimprove.envs.math.params import Difficulty
from selfimprove.envs.problems import Source
from selfimprove.envs.registry import AnswerSection
from selfimprove.methods.lineage import check_known, check_room, check_split
from selfimprove.methods.rows import Iterated, TrainedRow
from selfimprove.training.config import FinetuneParams


class TaskParams(Section):
    """Sizes and sources of the splits: demonstrations for the first SFT, and problems to collect, tune and test on."""

    source: Source = "embedded"
    files: dict[Literal["train", "test"], str] | None = Field(
        default=None, description="for source: files, your own JSONL in the format of rise.env.name"
    )
    demonstrations: int = Field(ge=0, le=1_000_000)
    train: int = Field(ge=1, le=1_000_000)
    dev: int = Field(ge=0, le=1_000_000)
    test: int = Field(ge=1, le=1_000_000)
    demonstration_difficulty: Difficulty = Field(
        default=Difficulty(), description="difficulty of the embedded demonstrations"
    )
    difficulty: Difficulty = Field(
        default=Difficulty(), description="difficulty of the embedded train, dev and test splits"
    )

    @model_validator(mode="after")
    def _files(self) -> TaskParams:
        if (self.source == "files") != (self.files is not None):
            raise ValueError("files: must be set if source is 'files', and only then")
        return self


class GenerateParams(Section):
    """One collection: ``models[t]`` draws ``num_of_samples[t]`` attempts at turn t."""

    tasks: int = Field(ge=1, description="number of problems from the training split, starting at offset")
    offset: int = Field(default=0, ge=0, description="index of the first problem in the training split")
    limit: int | None = Field(default=None, ge=1, description="debug: use only this many of those problems")
    max_turns: int = Field(default=5, ge=1, le=1000, description="maximum number of attempts at a problem")
    models: list[str]
    num_of_samples: list[int]
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1000, ge=1)
    context_window: int | None = Field(
        default=None,
        ge=1,
        description="number of turns in a prompt, including the current one, as in evaluation; null: all",
    )
    dialogue_limit: int = Field(default=20, ge=1, description="number of trailing messages kept, in whole pairs")
    concurrency: int = Field(default=512, ge=1, le=100_000, description="number of concurrent episodes")
    resamples: int = Field(default=3, ge=0, description="number of redraws when every sample of a turn is degenerate")

    def select(self, split: Sequence[Problem]) -> list[Problem]:
        """The part of the split that data are collected on.

        Raises:
            UserError: the split is too short.
        """
        end = self.offset + self.tasks
        if end > len(split):
            raise UserError(
                f"generate.tasks: offset + tasks is {end}, but the training split has {len(split)} tasks; lower one."
            )
        return list(split[self.offset : end])[: self.limit]

    @model_validator(mode="after")
    def _one_per_turn(self) -> GenerateParams:
        for key in ("models", "num_of_samples"):
            if len(getattr(self, key)) != self.max_turns:
                raise ValueError(
                    f"{key}: has {len(getattr(self, key))} entries, but max_turns is {self.max_turns}; give one per "
                    "turn"
                )
        if not all(1 <= count <= 10_000 for count in self.num_of_samples):
            raise ValueError("num_of_samples: every entry must be between 1 and 10000")
        return self


Criteria = Literal["all", "better", "best", "success"]
Baseline = Literal["none", "problem_mean", "turn_mean"]


class ConvertParams(Section):
    """Conversion of episodes to weighted examples: w = exp(reward / reward_temperature)."""

    criteria: Criteria = "all"
    reward_temperature: float = Field(
        default=0.4, ge=0.02, description="tau of the weights; values below 0.02 would overflow float32"
    )
    only_success: bool = False
    remove_duplication: bool = True
    shuffle: bool = True
    weighted: bool = Field(default=True, description="false: every weight is 1")
    reward_baseline: Baseline = "none"
    accumulate: bool = Field(default=False, description="include the examples of the parent iterations")


class EvaluateParams(Section):
    """Sequential and parallel evaluation, by default without an oracle; p1@tk gives the result with one."""

    split: Literal["dev", "test"] = "test"
    limit: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=5, ge=1, le=1000, description="maximum number of attempts at a problem")
    context_window: int = Field(default=5, ge=1)
    parallel_samples: int = Field(default=5, ge=1, le=10_000)
    oracle: bool = Field(default=False, description="stop at the first correct attempt")
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1000, ge=1)
    dialogue_limit: int = Field(default=20, ge=1)
    concurrency: int = Field(default=512, ge=1, le=100_000)


class Iteration(Section):
    """One round of self-improvement. ``init`` names the model that generates: base or another iteration."""

    init: str
    generate: GenerateParams
    convert: ConvertParams


class RiseRow(TrainedRow):
    """How a row is trained."""

    data: Literal["examples", "collected", "single_turn"] = Field(
        description="examples: the data of the base and the iterations; collected: the converted data of all "
        "iterations so far; single_turn: their correct answers as first attempts"
    )
    weights: Literal["converted", "batch", "equal"] = Field(
        default="converted",
        description="weights of the examples; converted: unchanged; batch: scaled to mean 1 in each batch; equal: "
        "all 1",
    )
    train: FinetuneParams = FinetuneParams()


class RiseParams(Iterated):
    """All parameters of the method."""

    tasks: TaskParams
    env: AnswerSection
    engines: dict[str, EngineConfig]
    evaluate: EvaluateParams
    rows: dict[str, RiseRow]
    iterations: dict[str, Iteration] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> RiseParams:
        self.check_rows(own="examples")
        check_split(self.evaluate.split, self.tasks)
        for key, iteration in self.iterations.items():
            asked, place = iteration.generate, f"iterations.{key}.generate"
            for model in asked.models:
                check_known(f"{place}.models", "engine", model, self.engines)
                check_answer_room(f"{place}.max_tokens", asked.max_tokens, model, self.engines[model])
            check_room(place, asked.tasks, asked.offset, self.tasks.train)
        source, env = self.tasks.source, self.env.name
        if source in ("gsm8k", "math") and self.env.own_tasks:
            raise ValueError(f"tasks.source: {source} provides problems, but {env} has tasks of its own; set embedded")
        check_own_model("student", self.engines, "rise", "evaluation")
        check_answer_room("evaluate.max_tokens", self.evaluate.max_tokens, "student", self.engines["student"])
        return self
