"""The ``reflect_rl`` section of params.yaml: every option of the method, in the order of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from selfimprove.core.params import Section, check_answer_room
from selfimprove.engines.config import (
    EngineConfig,
    OpenAiEngineConfig,
    ScriptedEngineConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
    check_own_model,
)
from selfimprove.envs.params import Asking
from selfimprove.envs.registry import ListedSection
from selfimprove.methods.lineage import check_known, check_names, check_split, lineage
from selfimprove.methods.reflect_rl.prompts import MarkerStyle
from selfimprove.methods.reflect_rl.rl_config import ActingParams, RLParams
from selfimprove.methods.rows import NONE, RESERVED, START, controls
from selfimprove.methods.trained import Trained
from selfimprove.training.config import FinetuneParams

DataSet = Literal["sft", "sft_reflection", "sft_policy", "sft_reflection_positive", "sft_policy_positive"]
DATA_SETS: tuple[DataSet, ...] = get_args(DataSet)


class TaskParams(Section):
    """Disjoint splits, drawn by the run's seed; without counts, 7:2:1 of all tasks (docs/reflect-rl.md, L45)."""

    train: int | None = Field(default=None, ge=1, le=1_000_000)
    dev: int | None = Field(default=None, ge=0, le=1_000_000)
    test: int | None = Field(default=None, ge=1, le=1_000_000)
    demonstrations: int | None = Field(
        default=None,
        ge=1,
        description="number of training tasks whose trajectories the policies learn; null: all. Reflectors learn "
        "from all tasks",
    )
    few_data: int = Field(default=0, ge=0, description="use only this many training tasks; 0: all")
    file: str | None = Field(default=None, description="autoexplore: a JSON list of tasks, replaces the templates")
    teacher: str | None = Field(
        default=None, description="autoexplore: engine that writes questions about files; null: templates"
    )
    asking: Asking = Asking()

    @model_validator(mode="after")
    def _all_or_none(self) -> TaskParams:
        if len({count is None for count in (self.train, self.dev, self.test)}) > 1:
            raise ValueError("set all of train, dev and test, or none of them for a split of 7:2:1")
        if self.file is not None and self.teacher is not None:
            raise ValueError("file and teacher are alternative sources of tasks; remove one")
        return self


class PromptParams(Section):
    """How both models are prompted (docs/reflect-rl.md, L2)."""

    markers: MarkerStyle = Field(default="spaced", description="stripped: for SentencePiece tokenizers")


class GenerateParams(Section):
    """The teacher's trajectories with reflections: complete and negative ones (docs/reflect-rl.md, L8 to L12)."""

    teacher: str = Field(default="teacher", description="name of an engine; a scripted engine explains without a model")
    tasks: int | None = Field(
        default=None, ge=1, description="number of training tasks that the teacher plays to the end; null: all"
    )
    negative_tasks: int | None = Field(
        default=None, ge=1, description="number of training tasks with negatives; null: all"
    )
    negatives: int = Field(
        default=2,
        ge=0,
        le=10_000,
        description="negatives per task: wrong files in autoexplore, exploring episodes elsewhere",
    )
    oracle_prob: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="exploring episodes: probability of the oracle's action instead of a random one; alfworld 0.3",
    )
    max_turns: int = Field(
        default=15, ge=1, description="maximum number of turns in the teacher's episodes; the paper: taxi 20"
    )
    levels: list[str] = Field(default=[], description="taxi: modes that the episodes cycle through; empty: env.mode")
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=300, ge=1, description="maximum number of tokens in the answer of a chat teacher")
    concurrency: int = Field(default=64, ge=1, le=100_000)


class SupervisedModel(Section):
    """One supervised model: a reflection model, a policy that runs start from, or a control."""

    init: str = Field(description="initial weights; start: the model in section base")
    data: DataSet = Field(description="training set, one of five")
    match: str = Field(description="for a control: the run whose token count it matches; otherwise none")
    train: FinetuneParams = FinetuneParams()


class Iteration(Section):
    """One run of reinforcement learning."""

    init: str = Field(description="model or run that provides the initial weights; start: the model in section base")
    reflector: str = Field(description="the frozen reflection model; none: the policy acts without reflections")
    rl: RLParams = RLParams()


class EvaluatedRow(Section):
    """A policy in the results table."""

    reflector: str = Field(
        description="reflection model used in evaluation; none: no reflections; for a run: must be the run's own"
    )


class EvaluateParams(ActingParams):
    """A policy plays a split, each task several times (docs/reflect-rl.md, L46)."""

    split: Literal["dev", "test"] = "test"
    limit: int | None = Field(default=None, ge=1)
    eval_reps: int = Field(default=10, ge=1, le=10_000, description="episodes per task and level")
    levels: list[str] = Field(default=[], description="empty: all levels of the environment")
    engine: str = Field(
        default="policy", description="engine of the policy in evaluation; training always uses the engine policy"
    )
    concurrency: int = Field(default=512, ge=1, le=100_000)


class ReportParams(Section):
    """The curves of success, cost and loss over the steps of reinforcement learning (docs/reflect-rl.md, L48)."""

    window: int = Field(default=99, ge=1, description="window of the centred moving average in points; odd")

    @model_validator(mode="after")
    def _has_a_middle(self) -> ReportParams:
        if self.window % 2 == 0:
            raise ValueError(f"window: {self.window} is even, but a centred average needs an odd number; change it")
        return self


class AgentParams(Section):
    """A player without trained weights: random, the oracle, or a chat model (docs/reflect-rl.md, L47)."""

    kind: Literal["random", "expert", "direct", "react", "chat"]
    engine: str | None = Field(default=None, description="engine of a direct, react or chat agent")
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=300, ge=1)
    eval_reps: int | None = Field(default=None, ge=1, le=10_000, description="null: same as evaluate.eval_reps")

    @model_validator(mode="after")
    def _asks_somebody(self) -> AgentParams:
        if (self.engine is None) != (self.kind in ("random", "expert")):
            need = "uses no engine; remove engine" if self.engine else "needs an engine; name one from engines"
            raise ValueError(f"kind {self.kind!r} {need}")
        return self


class ReflectRLParams(Trained):
    """All parameters of the method."""

    env: ListedSection
    tasks: TaskParams = TaskParams()
    prompt: PromptParams = PromptParams()
    engines: dict[str, EngineConfig]
    generate: GenerateParams
    train: FinetuneParams = Field(default=FinetuneParams(), description="defaults of every supervised training")
    rl: RLParams = Field(default=RLParams(), description="defaults of every run")
    models: dict[str, SupervisedModel] = Field(min_length=1)
    iterations: dict[str, Iteration] = Field(min_length=1)
    rows: dict[str, EvaluatedRow] = Field(min_length=1, description="the models and runs that are evaluated")
    agents: dict[str, AgentParams] = Field(default={}, description="agents without trained weights; may be empty")
    evaluate: EvaluateParams = EvaluateParams()
    report: ReportParams = ReportParams()

    @classmethod
    def takers(cls, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        return {"models.*.train?": ("train",), "iterations.*.rl?": ("rl",)}

    @property
    def controls(self) -> dict[str, SupervisedModel]:
        """The models that are controls."""
        return controls(self.models)

    @model_validator(mode="after")
    def _names(self) -> ReflectRLParams:
        kinds = {kind: getattr(self, kind) for kind in ("models", "iterations", "agents")}
        check_names(kinds, (*RESERVED, "base"))
        for key, run in self.iterations.items():
            check_known(f"iterations.{key}.init", "model", run.init, [START, *self.models, *self.iterations])
            self.lineage(key)
            self._is_reflector(f"iterations.{key}.reflector", run.reflector)
            self._is_advised(key)
        for key, model in self.models.items():
            lineage(self.models, key, roots=(START,), kind="models")
            check_known(f"models.{key}.match", "iteration", model.match, [NONE, *self.iterations])
        self._check_matches()
        for key, row in self.rows.items():
            check_known(f"rows.{key}", "model or run", key, [*self.models, *self.iterations])
            self._is_reflector(f"rows.{key}.reflector", row.reflector)
            if key in self.iterations and row.reflector != self.iterations[key].reflector:
                raise ValueError(
                    f"rows.{key}.reflector: must be {self.iterations[key].reflector!r}, as in "
                    f"iterations.{key}.reflector"
                )
        for kind, keys in (("iterations", self.iterations), ("models", self.controls)):
            for key in keys:
                if key not in self.rows:
                    raise ValueError(f"{kind}.{key}: has no row; add rows.{key}, with its reflector")
        return self

    def _check_matches(self) -> None:
        """Raises: ValueError: a run would start from, or act with, a model that matches the run's token count."""
        needs = {key: (model.init, model.match) for key, model in self.models.items()}
        needs |= {key: (run.init, run.reflector) for key, run in self.iterations.items()}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            cycle = error.args[1]
            key = next(key for key in cycle if key in self.models and self.models[key].match in cycle)
            raise ValueError(
                f"models.{key}.match: {self.models[key].match!r} itself depends on {key!r} "
                f"({' <- '.join(reversed(cycle))}); set none or another run"
            ) from None

    @model_validator(mode="after")
    def _tasks(self) -> ReflectRLParams:
        for key in ("file", "teacher"):
            if getattr(self.tasks, key) is not None and not self.env.takes_task_file:
                raise ValueError(
                    f"tasks.{key}: {self.env.name} does not support tasks from a file or a teacher; remove it"
                )
        check_split(self.evaluate.split, self.tasks)
        return self

    @model_validator(mode="after")
    def _engines(self) -> ReflectRLParams:
        for key, use in (("policy", "training and evaluation"), ("reflector", "reflections")):
            check_own_model(key, self.engines, "reflect_rl", use)
        if not isinstance(self.engines["policy"], TransformersEngineConfig):
            raise ValueError(
                "engines.policy: must share the weights that reinforcement learning updates; use transformers "
                "(evaluate.engine may name a vllm engine for evaluation)"
            )
        self._evaluates()
        check_known("generate.teacher", "engine", self.generate.teacher, self.engines)
        self._is_taught("generate.teacher", self.generate.teacher)
        self._have_room()
        if self.tasks.teacher is not None:
            check_known("tasks.teacher", "engine", self.tasks.teacher, self.engines)
            self._is_taught("tasks.teacher", self.tasks.teacher)
            if isinstance(self.engines[self.tasks.teacher], ScriptedEngineConfig):
                raise ValueError("tasks.teacher: a scripted engine cannot write questions; set null for templates")
        for key, agent in self.agents.items():
            if agent.engine is not None:
                check_known(f"agents.{key}.engine", "engine", agent.engine, self.engines)
                if isinstance(self.engines[agent.engine], ScriptedEngineConfig):
                    raise ValueError(f"agents.{key}.engine: a scripted engine is not a chat model; use kind expert")
        return self

    def _have_room(self) -> None:
        """Check that requests for more than a label fit the context of their engines."""
        advised = {f"iterations.{key}.rl": run.rl for key, run in self.iterations.items() if run.reflector != NONE}
        asked = [(place, rl.max_tokens, "reflector") for place, rl in advised.items()]
        if any(row.reflector != NONE for row in self.rows.values()):
            asked.append(("evaluate", self.evaluate.max_tokens, "reflector"))
        asked.append(("generate", self.generate.max_tokens, self.generate.teacher))
        asked += [(f"agents.{key}", one.max_tokens, one.engine) for key, one in self.agents.items() if one.engine]
        for place, tokens, engine in asked:
            check_answer_room(f"{place}.max_tokens", tokens, engine, self.engines[engine])

    def _evaluates(self) -> None:
        """Check the policy's engine for evaluations."""
        name, cfg = self.evaluate.engine, self.evaluate
        check_known("evaluate.engine", "engine", name, self.engines)
        if isinstance(self.engines[name], ScriptedEngineConfig | OpenAiEngineConfig):
            raise ValueError("evaluate.engine: must load the evaluated weights; use transformers or vllm")
        check_own_model(name, self.engines, "reflect_rl", "evaluation")
        if isinstance(self.engines[name], VllmEngineConfig) and not (cfg.shrink_head or cfg.mask_invalid):
            raise ValueError(
                "evaluate.engine: vllm can only choose among labels; set evaluate.shrink_head or "
                "evaluate.mask_invalid, or use transformers"
            )

    def _is_taught(self, place: str, name: str) -> None:
        engine = self.engines[name]
        if isinstance(engine, TransformersEngineConfig | VllmEngineConfig) and engine.model == "policy":
            raise ValueError(
                f"{place}: {name!r} uses the policy, which is not trained yet at this stage; set its model to a folder"
            )

    def _is_reflector(self, place: str, name: str) -> None:
        reflectors = [key for key, model in self.models.items() if model.data.startswith("sft_reflection")]
        if name not in (NONE, *reflectors):
            raise ValueError(
                f"{place}: {name!r} was not trained to reflect; name one of models whose data is sft_reflection "
                f"({', '.join(reflectors) or 'none defined'}), or none"
            )

    def _is_advised(self, run: str) -> None:
        """Refuse to train a policy without a reflection model if it was trained with reflections (L26)."""
        first = self.iterations[self.lineage(run)[0]].init
        acts = first in self.models and self.models[first].data.startswith("sft_policy")
        if acts and self.iterations[run].reflector == NONE:
            raise ValueError(
                f"iterations.{run}: {first!r} was trained to act on reflections, but the run has no reflection model; "
                "set reflector, or start from a policy that was trained on the set sft"
            )

    def lineage(self, name: str) -> list[str]:
        """The run and the runs it continues, oldest first, without supervised models."""
        return lineage(self.iterations, name, roots=(START, *self.models))
