"""The ``spin`` section of params.yaml: every option of the method, in the order of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from selfimprove.core.errors import meant
from selfimprove.core.params import CHOICE, LARGEST_SEED, Section, check_answer_room
from selfimprove.engines.config import EngineConfig, OpenAiEngineConfig, check_own_model
from selfimprove.envs.interface import MakesProblems
from selfimprove.envs.own_classes import own_class
from selfimprove.envs.params import AnswerParams, EnvParams, TextParams
from selfimprove.envs.qa.base import Split, TaskName
from selfimprove.envs.qa.encyclopedia import EncyclopediaParams
from selfimprove.envs.qa.experts import QuestSource
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.registry import AnswerSection, TextSection, playable, section_of
from selfimprove.methods.lineage import check_split
from selfimprove.methods.rows import Iterated, TrainedRow
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.prompts import Format, is_flat
from selfimprove.training.config import FinetuneParams

SOURCES = ("encyclopedia", "hotpotqa", "chat")
PROBLEMS = ("gsm8k", "math")
"""Sources of problems with one correct answer."""
QUESTIONS = "questions"


class OtherTask(Section):
    """The questions of another data set, for evaluation."""

    task: TaskName
    split: Literal["train", "dev", "val", "test"]
    folder: str | None = Field(default=None, description="folder with the task's files; null: from data/sources.yaml")


class QuestionsParams(EnvParams):
    """The questions of ``spin.tasks.source``, with tools to look up their answers."""

    name: Literal["questions"] = "questions"


def _kind(value: Any) -> str:
    """The tag of the environment's kind: questions, acted or answers."""
    if isinstance(value, list):
        return f"{CHOICE}acted"
    name = value.get("name", QUESTIONS) if isinstance(value, Mapping) else value.name
    if name == QUESTIONS:
        return f"{CHOICE}{QUESTIONS}"
    one = section_of(name, TextParams)
    return f"{CHOICE}answers" if one and issubclass(one, AnswerParams) else f"{CHOICE}acted"


def _named(value: Any) -> Any:
    """Refuse a value that does not name an environment."""
    if isinstance(value, EnvParams | list):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected a section with the key name")
    name = value.get("name", QUESTIONS)
    if name != QUESTIONS and (not isinstance(name, str) or section_of(name, TextParams) is None):
        known = dict.fromkeys((QUESTIONS, *playable(TextParams), *playable(AnswerParams)))
        offered = f"choose {', '.join(known)}, or a custom package.module:Class"
        raise ValueError(f"name: {name!r} is unknown; {meant(name, known, offered)}")
    return value


SpinEnv = Annotated[
    Annotated[QuestionsParams, Tag(f"{CHOICE}{QUESTIONS}")]
    | Annotated[TextSection, Tag(f"{CHOICE}acted")]
    | Annotated[AnswerSection, Tag(f"{CHOICE}answers")],
    Discriminator(_kind),
    BeforeValidator(_named),
]
"""Questions with tools, an interactive environment, or, for plain SPIN, problems with one correct answer."""


class TasksParams(Section):
    """Source of questions, experts and paragraphs, and the sizes of the splits.

    ``encyclopedia`` is generated from a seed; ``hotpotqa`` is real, with FireAct's experts (``data/sources.yaml`` or
    DATA_MIRROR); ``chat`` is plain SPIN: prompts with human answers, without tools.
    """

    source: str = Field(
        default="encyclopedia",
        description="encyclopedia, hotpotqa, chat; gsm8k, math: problems, for the env of that name; or "
        "package.module:Class, a custom source (docs/environments.md)",
    )
    train: int = Field(
        ge=1, le=1_000_000, description="number of questions with an expert, used for the warm start and for self-play"
    )
    dev: int = Field(ge=0, le=1_000_000)
    test: int = Field(ge=1, le=1_000_000)
    encyclopedia: EncyclopediaParams = EncyclopediaParams()
    experts: Literal["gpt-4", "scripted", "both"] = Field(
        default="gpt-4", description="hotpotqa: FireAct's 500 trajectories, scripted ones (declared as such), or both"
    )
    expert_file: str | None = Field(
        default=None,
        description="hotpotqa: a file of experts (Alpaca rows) that replace FireAct's own; they are audited",
    )
    file: str | None = Field(default=None, description="chat: the folder written by plain SPIN's `reformat`")
    other: OtherTask | None = Field(default=None, description="evaluate on another task; null: the source's own split")

    @model_validator(mode="after")
    def _of_the_source(self) -> TasksParams:
        if ":" in self.source:
            own_class(self.source, QuestSource, key="source")
        elif self.source not in (*SOURCES, *PROBLEMS):
            offered = f"{', '.join((*SOURCES, *PROBLEMS))}, or a custom package.module:Class"
            raise ValueError(f"source: {self.source!r} is unknown; choose {offered}")
        if (self.file is None) == (self.source == "chat"):
            raise ValueError("file: must name the reformatted folder if source is chat, and only then")
        if self.expert_file is not None and (self.source != "hotpotqa" or self.experts == "scripted"):
            raise ValueError("expert_file: is used only with source hotpotqa and experts gpt-4 or both; set null")
        return self


class PromptParams(Section):
    """The format of questions (docs/spin.md, S11 and S12)."""

    format: Format = Field(
        default="alpaca", description="alpaca: one growing text; question: without the wrapper; chat; reply"
    )
    few_shot: str = Field(
        default="off", description="off; default: worked episodes of the evaluated task; or a file of your own"
    )
    question_prefix: str = Field(
        default="",
        description="prepended to every question (with tasks.other: to that task's only); StrategyQA's is 'Yes or "
        "no: '",
    )


class PlayParams(Section):
    """How the policy plays, and on which questions: shuffled with the original's seed, then cut from start to end."""

    start: int = Field(default=0, ge=0)
    end: int | None = Field(default=None, ge=1, description="null: to the end of the split")
    shuffled: bool = Field(default=True, description="order of random.Random(233); false: the data set's order")
    max_turns: int = Field(default=11, ge=1, description="maximum number of rounds (thought and action) in an episode")
    retries: int = Field(default=5, ge=0, description="maximum number of retries after a reply without an action")
    temperature: float = Field(default=1.0, ge=0, description="self-play samples (1.0); evaluation is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=1000, ge=1, description="maximum number of tokens in a round")
    evaluate: bool = Field(default=True, description="false: nothing is scored and rewards are null")
    concurrency: int = Field(default=512, ge=1, le=100_000, description="number of concurrent episodes")

    @model_validator(mode="after")
    def _some(self) -> PlayParams:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end: {self.end} must be greater than start, which is {self.start}")
        return self


class GenerateParams(PlayParams):
    """Self-play: the opponent plays the training split. With several runs per question there are outcome pairs, too."""

    runs: int = Field(
        default=1, ge=1, le=10_000, description="episodes per question; SPIN uses the first, outcome pairs use all"
    )


class EvaluateParams(PlayParams):
    """The policy plays a held-out split."""

    split: Literal["dev", "test"] = "test"
    temperature: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _scored(self) -> EvaluateParams:
        if not self.evaluate:
            raise ValueError("evaluate: an evaluation without scores has no results to report; set true")
        return self


class Mix(Section):
    """Training data: the pairs of this iteration and of the previous one, never older ones (docs/spin.md, S2).

    The first int(fraction * n) pairs of each are concatenated and shuffled with ``seed``.
    """

    own: float = Field(default=1.0, gt=0, le=1)
    previous: float = Field(default=1.0, ge=0, le=1)
    seed: int = Field(default=42, ge=0, le=LARGEST_SEED)


class ConvertParams(Section):
    """Conversion of episodes and experts to pairs."""

    drop_identical: bool = Field(
        default=False, description="drop pairs of identical texts, which have no gradient; they are counted either way"
    )
    mix: Mix = Mix()


class Iteration(Section):
    """One round of self-play. ``init`` is the opponent, which generates and is the initial model of the training."""

    init: str
    generate: GenerateParams
    convert: ConvertParams = ConvertParams()


class ExpertRow(TrainedRow):
    """A row trained on the experts' trajectories."""

    data: Literal["examples"]
    train: FinetuneParams = FinetuneParams()


class PairRow(TrainedRow):
    """A row trained on pairs."""

    data: Literal["pairs", "outcome"] = Field(
        description="pairs: expert against opponent, the data of the iterations; outcome: of the model's own "
        "episodes, the rewarded one is preferred"
    )
    train: PairParams = PairParams()


SpinRow = Annotated[ExpertRow | PairRow, Field(discriminator="data")]


class SpinParams(Iterated):
    """All parameters of the method."""

    env: SpinEnv = QuestionsParams()
    tasks: TasksParams
    prompt: PromptParams = PromptParams()
    tools: ToolsParams = ToolsParams()
    play_tools: ToolsParams | None = Field(
        default=None, description="separate tools for self-play; null: same as tools"
    )
    engines: dict[str, EngineConfig]
    pairs: PairParams = Field(
        default=PairParams(), description="defaults of training on pairs; overrides the section's ``train``"
    )
    evaluate: EvaluateParams
    rows: dict[str, SpinRow]
    iterations: dict[str, Iteration] = Field(min_length=1)

    @classmethod
    def takers(cls, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        rows = section.get("rows")
        return {
            f"rows.{name}.train?": ("train", "pairs") if row.get("data") != "examples" else ("train",)
            for name, row in (rows.items() if isinstance(rows, Mapping) else ())
            if isinstance(row, Mapping)
        }

    @model_validator(mode="after")
    def _names(self) -> SpinParams:
        self.check_rows(own="pairs")
        check_split(self.evaluate.split, self.tasks)
        for key, iteration in self.iterations.items():
            if self.rows[key].init != iteration.init:
                raise ValueError(
                    f"rows.{key}.init: must be {iteration.init!r}, as in iterations.{key}.init, because training "
                    "starts from the opponent"
                )
        for key, row in self.rows.items():
            if row.data != "outcome":
                continue
            played = self.iterations[row.source].generate
            if played.runs < 2:
                raise ValueError(
                    f"rows.{key}.source: {row.source} plays each question once, so there are no outcome pairs; set its "
                    "generate.runs to 2 or more"
                )
            if not played.evaluate:
                raise ValueError(
                    f"rows.{key}.source: the episodes of {row.source} are not scored, so there are no outcome pairs; "
                    "set its generate.evaluate to true"
                )
        return self

    @model_validator(mode="after")
    def _engine(self) -> SpinParams:
        check_own_model("policy", self.engines, "spin", "self-play and evaluation")
        if isinstance(self.engines["policy"], OpenAiEngineConfig) and is_flat(self.prompt.format):
            raise ValueError("prompt.format: an endpoint accepts only chat turns; set chat, or use another engine")
        plain = self.tasks.source == "chat" or isinstance(self.env, AnswerParams)
        if plain != (self.prompt.format == "reply"):
            if isinstance(self.env, AnswerParams):
                raise ValueError(f"prompt.format: {self.env.name} expects a single answer, as in plain SPIN; set reply")
            raise ValueError(
                "prompt.format: must be reply (plain SPIN) if tasks.source is chat or env has problems, and only then"
            )
        if self.prompt.format == "reply" and self.prompt.few_shot != "off":
            raise ValueError("prompt.few_shot: plain SPIN has no worked episodes; set off")
        return self

    @model_validator(mode="after")
    def _fits(self) -> SpinParams:
        """Refuse slices that exceed their split, and replies that do not fit the engine's context."""
        for key, split, play in (
            ("evaluate", self.evaluate.split, self.evaluate),
            *((f"iterations.{key}.generate", "train", one.generate) for key, one in self.iterations.items()),
        ):
            count: int = getattr(self.tasks, split)
            if play.start >= count:
                raise ValueError(f"{key}.start: {play.start} must be below tasks.{split}, which is {count}; change one")
            if play.end is not None and play.end > count:
                raise ValueError(f"{key}.end: {play.end} exceeds tasks.{split}, which is {count}; change one")
            check_answer_room(f"{key}.max_tokens", play.max_tokens, "policy", self.engines.get("policy"))
        return self

    @model_validator(mode="after")
    def _of_the_environment(self) -> SpinParams:
        source = self.tasks.source
        if isinstance(self.env, QuestionsParams):
            if source in PROBLEMS:
                raise ValueError(f"tasks.source: {source} has problems with one right answer; set env.name: {source}")
            return self
        if isinstance(self.env, AnswerParams) and source in PROBLEMS:
            if source != self.env.name and ":" not in self.env.name:
                raise ValueError(f"tasks.source: is {source}, but env.name is {self.env.name}; set both to the same")
            source = "encyclopedia"
        elif isinstance(self.env, AnswerParams) and not isinstance(self.env.make(), MakesProblems):
            raise ValueError(f"tasks.source: {self.env.name} has no problems of its own; set {' or '.join(PROBLEMS)}")
        fields: dict[str, tuple[Any, Any]] = {
            "tasks.source": (source, "encyclopedia"),
            "tasks.other": (self.tasks.other, None),
        }
        fields |= {"play_tools": (self.play_tools, None), "prompt.question_prefix": (self.prompt.question_prefix, "")}
        for key, (value, unset) in fields.items():
            if value != unset:
                shown = "null" if unset is None else repr(unset)
                raise ValueError(
                    f"{key}: applies only to env.name {QUESTIONS}; {self.env.name} has its own tasks, so set {shown}"
                )
        return self

    def asked(self, split: Split) -> tuple[str, str]:
        """(task, prefix): the data set of a split's questions, and the text put before each of them.

        With ``tasks.other`` the test split is that task's, and ``prompt.question_prefix`` applies only to it; warm
        start and self-play use the source's questions unchanged.
        """
        other, prefix = self.tasks.other, self.prompt.question_prefix
        if not isinstance(self.env, QuestionsParams):
            return self.env.world_name, prefix
        if other is None:
            return self.tasks.source, prefix
        return (other.task, prefix) if split == "test" else (self.tasks.source, "")
