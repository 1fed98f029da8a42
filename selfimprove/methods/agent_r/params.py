"""The ``agent_r`` section of params.yaml: every option of the method, in the order of the pipeline."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from selfimprove.core.params import Section, check_answer_room
from selfimprove.engines.config import EngineConfig, check_own_model
from selfimprove.envs.registry import TextSection
from selfimprove.methods.lineage import check_known, check_room, check_split
from selfimprove.methods.rows import Iterated, TrainedRow
from selfimprove.training.config import FinetuneParams

JudgeStyle = Literal["full", "short"]
StopText = Annotated[str, Field(min_length=1)]


class GameParams(Section):
    """ScienceWorld: a slice of its 23 task numbers, and the number of variations of each (the original's loop)."""

    start: int = Field(default=0, ge=0)
    stop: int | None = Field(default=None, ge=1)
    variations: int = Field(default=5, ge=1)


class TaskParams(Section):
    """Sizes and sources of the splits: demonstrations for the warm start, and tasks to search, tune and test on.

    Splits are disjoint and drawn from the environment's task ids by the run's seed, or from lists of ids in ``files``
    (JSON, as published by AgentGym and Agent-R).
    """

    demonstrations: int = Field(
        ge=0,
        le=1_000_000,
        description="number of tasks, in a separate split, whose expert episodes form the warm start",
    )
    layouts: int = Field(
        default=1,
        ge=1,
        description="textcraft: number of variants of each demonstration, with different command orders and "
        "distractors",
    )
    train: int = Field(ge=1, le=1_000_000)
    dev: int = Field(ge=0, le=1_000_000)
    test: int = Field(ge=1, le=1_000_000)
    files: dict[Literal["train", "test"], str] | None = None
    games: GameParams | None = Field(default=None, description="sciworld: selection of its games; null: all")
    revision_demonstrations: int = Field(
        default=0, ge=0, description="warm start: number of expert episodes with a slip and its revision"
    )
    observation_weight: float = Field(
        default=0.0,
        ge=0,
        description="warm start: loss weight of observations in demonstrations (replies have weight 1); a model from "
        "scratch learns from repeated pages to copy, and then to answer from what it reads (ours)",
    )
    judge_examples: int = Field(
        default=0, ge=0, description="warm start: number of scripted judgements, so that the actor can act as the judge"
    )
    judge_style: JudgeStyle = Field(
        default="short",
        description="warm start: prompt style of those judgements; must match the actor's (iterations.*.convert)",
    )

    @model_validator(mode="after")
    def _of_demonstrated_tasks(self) -> TaskParams:
        if not self.demonstrations and (self.revision_demonstrations or self.judge_examples):
            raise ValueError(
                "revision_demonstrations and judge_examples need demonstrations, which is 0; set both to 0"
            )
        return self


class SearchParams(Section):
    """One collection: a search tree per task (docs/agent-r.md, A7 to A13)."""

    tasks: int = Field(ge=1, description="number of tasks from the training split, starting at offset")
    offset: int = Field(default=0, ge=0, description="index of the first task in the training split")
    limit: int | None = Field(default=None, ge=1, description="debug: use only this many of those tasks")
    min: int | None = Field(default=None, ge=0, description="lowest task id")
    max: int | None = Field(default=None, ge=1, description="upper bound of the task ids, exclusive")
    engine: str = Field(
        default="actor",
        description="engine that searches: actor is the model itself; another engine serves as a teacher",
    )
    prior: str | None = Field(
        default=None,
        description="JSONL of {task_id, replies}: the tree of a task starts after the replies of its line; null: none",
    )
    max_depth: int = Field(default=10, ge=0, le=1000, description="MAX_DEPTH: up to max_depth + 1 actions")
    dives: int = Field(default=4, ge=1, description="ITERA: number of dives per tree")
    n_gen: int = Field(default=4, ge=1, le=10_000, description="N_GEN: samples per expansion")
    exploration: float = Field(default=0.25, ge=0, description="weight of the UCT exploration bonus")
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=500, ge=1)
    stop: list[StopText] = Field(default=[])
    concurrency: int = Field(default=256, ge=1, le=100_000, description="number of trees searched concurrently")

    @model_validator(mode="after")
    def _some(self) -> SearchParams:
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(
                f"min: {self.min} is not below max {self.max}, so no task id is in range; lower min or raise max"
            )
        return self


class Mix(Section):
    """Sampling weights of the kinds of data. Weight 0 leaves a kind out; 1, 1, 0 uses all of the first two once."""

    revision: float = Field(default=1.0, ge=0)
    good: float = Field(default=1.0, ge=0)
    general: float = Field(default=0.0, ge=0, description="eta: amount of general chat data relative to the agent data")
    warm_start: float = Field(
        default=0.0, ge=0, description="amount of warm-start examples relative to the agent data (ours)"
    )
    general_file: str | None = Field(
        default=None, description="JSONL or JSON list of chats: {messages: [{role, content}, …]} or ShareGPT's format"
    )


class ConvertParams(Section):
    """Conversion of search trees to training conversations (docs/agent-r.md, A16 to A25)."""

    data_type: Literal["good", "centric"] = Field(default="centric", description="good: good trajectories only")
    revise: bool = Field(default=True, description="false: direct revision without a judge")
    alpha: float = Field(default=0.5, ge=0, le=1, description="a leaf is good if its score is greater than alpha")
    beta: float = Field(
        default=0.2, ge=0, le=1, description="minimum score difference between good and bad (exclusive)"
    )
    inclusive: bool = Field(default=False, description="make the thresholds alpha and beta inclusive")
    max_pairs_per_tree: int | None = Field(
        default=None, ge=1, description="null: all pairs, quadratic in the number of leaves"
    )
    judge: Literal["actor", "scripted"] = Field(
        default="actor", description="actor: the model itself; scripted: the environment's expert"
    )
    judge_style: JudgeStyle = Field(
        default="full", description="short: a few lines, for a small model; one sentence of reasons"
    )
    judge_max_tokens: int = Field(default=300, ge=1)
    judge_temperature: float = Field(default=0.0, ge=0)
    validate_splice: Literal["none", "replay"] = "none"
    accumulate: bool = Field(default=False, description="include the examples of the parent iterations")
    mix: Mix = Mix()
    concurrency: int = Field(default=512, ge=1, le=100_000, description="number of pairs judged concurrently")


class EvaluateParams(Section):
    """The policy plays a split, and continues from given bad beginnings (revision evaluation, the paper's Table 3)."""

    split: Literal["dev", "test"] = "test"
    limit: int | None = Field(default=None, ge=1)
    max_turns: int = Field(
        default=100, ge=1, description="maximum number of turns in an episode; the original's max_steps"
    )
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=500, ge=1)
    stop: list[StopText] = Field(default=[])
    revision: bool = Field(default=True, description="also evaluate from given bad beginnings")
    beginnings: str | None = Field(
        default=None, description="JSONL of {task_id, replies} with the bad beginnings; null: the base's own failures"
    )
    revision_tasks: int | None = Field(default=None, ge=1, description="maximum number of bad beginnings")
    revision_prefix: int = Field(default=3, ge=1, description="maximum number of bad actions in a beginning")
    concurrency: int = Field(default=512, ge=1, le=100_000)


class Iteration(Section):
    """One round. ``init`` names the model that searches and judges: base or another iteration."""

    init: str
    generate: SearchParams
    convert: ConvertParams


class AgentRRow(TrainedRow):
    """How a row is trained."""

    data: Literal["examples", "good", "direct"] = Field(
        description="examples: the data of the base and the iterations; from the trees of an iteration and its "
        "ancestors: good (good trajectories only) or direct (pairs revised after the whole bad path, revise: false)"
    )
    train: FinetuneParams = FinetuneParams()


class AgentRParams(Iterated):
    """All parameters of the method."""

    env: TextSection
    tasks: TaskParams
    engines: dict[str, EngineConfig]
    evaluate: EvaluateParams
    rows: dict[str, AgentRRow]
    iterations: dict[str, Iteration] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> AgentRParams:
        self.check_rows(own="examples")
        check_split(self.evaluate.split, self.tasks)
        for key, iteration in self.iterations.items():
            search, place = iteration.generate, f"iterations.{key}.generate"
            check_known(f"{place}.engine", "engine", search.engine, self.engines)
            check_answer_room(f"{place}.max_tokens", search.max_tokens, search.engine, self.engines[search.engine])
            if (search.min, search.max) == (None, None):
                check_room(place, search.tasks, search.offset, self.tasks.train)
        for key, iteration in self.iterations.items():
            asked = iteration.convert
            if self.tasks.judge_examples and asked.judge == "actor" and asked.judge_style != self.tasks.judge_style:
                raise ValueError(
                    f"tasks.judge_style: is {self.tasks.judge_style!r}, but iterations.{key}.convert.judge_style is "
                    f"{asked.judge_style!r}, and the actor learns only the first; set both to the same value"
                )
        if self.tasks.layouts > 1 and not self.env.has_layouts:
            raise ValueError(f"tasks.layouts: {self.env.name} has only one layout per task; set 1")
        if self.tasks.games is not None and not self.env.has_games:
            raise ValueError(f"tasks.games: {self.env.name} has no numbered games; remove it")
        check_own_model("actor", self.engines, "agent_r", "search, judging and evaluation")
        check_answer_room("evaluate.max_tokens", self.evaluate.max_tokens, "actor", self.engines["actor"])
        for key, iteration in self.iterations.items():
            asked = iteration.convert
            if asked.revise and asked.judge == "actor":
                place = f"iterations.{key}.convert.judge_max_tokens"
                check_answer_room(place, asked.judge_max_tokens, "actor", self.engines["actor"])
        return self
