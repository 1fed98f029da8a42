"""Requirements of a stage: combines the counts of ``work.py``, the formulas of ``formulas.py``, and the memory use of
the engines and trainers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from selfimprove.core.errors import UserError
from selfimprove.engines.config import (
    POLICY,
    EngineConfig,
    OpenAiEngineConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
)
from selfimprove.engines.vllm.checks import check_gpu_memory
from selfimprove.pipeline.plan import formulas as f
from selfimprove.pipeline.plan import inference, training
from selfimprove.pipeline.plan.hardware import Hardware
from selfimprove.pipeline.plan.inference import LoadedEngine, engine_seconds, loaded_engine
from selfimprove.pipeline.plan.shapes import shape_of
from selfimprove.pipeline.plan.training import TrainingEstimate, trained_model
from selfimprove.pipeline.plan.work import Work

TEXT_BYTES = 10
"""Bytes of a generated token in the JSONL files: its text and its id."""

DATA_BYTES = 5
"""Bytes of a token in the JSONL files of training data: its text."""


@dataclass(frozen=True)
class Memory:
    """Bytes on each GPU that a stage uses, in its most demanding phase."""

    weights: float = 0.0
    gradients: float = 0.0
    optimiser: float = 0.0
    activations: float = 0.0
    kv: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimiser + self.activations + self.kv + self.other

    def __add__(self, more: Memory) -> Memory:
        return Memory(*(getattr(self, name) + getattr(more, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Estimate:
    """One line of the plan, in bytes, tokens and hours. ``kept``: outputs; ``while_running``: temporary files such as
    checkpoints; ``remote``: (requests, tokens read, tokens written) by endpoint engine; ``at``: the assumed utilisation
    on which the hours are based; ``at_work``: number of GPUs that the stage uses on all machines (for training, if it
    trains); ``problems``: one sentence each."""

    stage: str
    gpus: int
    memory: Memory
    host: float
    kept: float
    while_running: float
    read: int
    written: int
    remote: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    hours: float | None = None
    at: str = ""
    at_work: int = 0
    problems: tuple[str, ...] = ()


def estimate(
    work: Work,
    engines: Mapping[str, EngineConfig],
    section: str,
    shape: f.Shape,
    machine: Hardware,
    longest: int = 0,
) -> Estimate:
    """The requirements of one stage.

    Args:
        section: the method's section in params.yaml.
        shape: of the method's base and all its models, except engines that name another model.
        longest: tokens of the method's longest training example.

    Raises:
        UserError: the config of an engine's model is not available.
    """
    local = {
        call.engine: cfg
        for call in work.calls
        if isinstance(cfg := engines[call.engine], TransformersEngineConfig | VllmEngineConfig)
    }
    trained = trained_model(work.training, shape, machine) if work.training and not work.training.untrained else None
    held = trained.held_dtype if trained and work.together else None
    shapes = {name: shape if cfg.model == POLICY else shape_of(cfg.model) for name, cfg in local.items()}
    loaded = {
        name: loaded_engine(
            f"{section}.engines.{name}", cfg, shapes[name], machine, held if name == "policy" else None, longest
        )
        for name, cfg in local.items()
    }
    serving = _serving(loaded)
    learning = Memory() if trained is None else _learning(trained)
    peak = serving + learning if work.together else max(serving, learning, key=lambda part: part.total)
    read = sum(call.read for call in work.calls if call.engine in local)
    written = sum(call.written for call in work.calls if call.engine in local)
    hours, at = _hours(work, loaded, trained, shapes, machine)
    spread = [one.gpus * (machine.nodes if isinstance(one.cfg, VllmEngineConfig) else 1) for one in loaded.values()]
    if trained is not None:
        spread = [trained.gpus * trained.params.launcher.nodes]
    if work.training is not None:
        read += work.training.tokens + work.training.scored
    return Estimate(
        stage=work.stage,
        gpus=max([one.gpus for one in loaded.values()] + ([trained.gpus] if trained else []), default=0),
        memory=peak,
        host=sum(one.host for one in loaded.values()) + (trained.host if trained else 0.0) or 1e9,
        kept=_kept(work, shape, trained) + TEXT_BYTES * written + DATA_BYTES * work.data,
        while_running=trained.checkpoints if trained else 0.0,
        read=read,
        written=written,
        remote=_remote(work, engines),
        hours=hours,
        at=at,
        at_work=max(spread, default=0),
        problems=_problems(loaded, trained, peak, machine),
    )


def _serving(loaded: Mapping[str, LoadedEngine]) -> Memory:
    total = Memory()
    for one in loaded.values():
        if one.gpus:
            total += Memory(weights=one.weights, activations=one.activations, kv=one.kv, other=one.other)
    return total


def _learning(trained: TrainingEstimate) -> Memory:
    if not trained.gpus:
        return Memory()
    states = trained.states
    learning = Memory(states.weights, states.gradients, states.optimiser, trained.activations, 0.0, trained.other)
    weights, activations = trained.opponent
    scoring = Memory(weights=weights, activations=activations, other=inference.PROCESS_GPU if weights else 0.0)
    return max(learning, scoring, key=lambda part: part.total)


def _kept(work: Work, shape: f.Shape, trained: TrainingEstimate | None) -> float:
    if work.base:
        return shape.parameters * shape.stored
    return trained.output if trained else 0.0  # a model that is used unchanged shares the files of its predecessor


def _remote(work: Work, engines: Mapping[str, EngineConfig]) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for call in work.calls:
        if isinstance(engines[call.engine], OpenAiEngineConfig):
            requests, read, written = found.get(call.engine, (0, 0, 0))
            found[call.engine] = (requests + call.requests, read + call.read, written + call.written)
    return found


def _hours(
    work: Work,
    loaded: Mapping[str, LoadedEngine],
    trained: TrainingEstimate | None,
    shapes: Mapping[str, f.Shape],
    machine: Hardware,
) -> tuple[float | None, str]:
    """Hours on the machine's GPUs and the assumed utilisation; None if something runs on the CPU."""
    if any(not one.gpus for one in loaded.values()) or (trained is not None and not trained.gpus):
        return None, ""
    seconds, shares = 0.0, []
    for call in work.calls:
        if call.engine in loaded:
            seconds += engine_seconds(call, loaded[call.engine], shapes[call.engine], machine)
            shares = [f"{inference.COMPUTE:.0%}", f"{inference.TRAFFIC:.0%}"]
    if trained is not None:
        seconds += trained.seconds
        shares.append(f"{training.COMPUTE:.0%}")
    return seconds / 3600, "/".join(share.rstrip("%") for share in shares)


def _problems(
    loaded: Mapping[str, LoadedEngine], trained: TrainingEstimate | None, peak: Memory, machine: Hardware
) -> tuple[str, ...]:
    found = [problem for one in loaded.values() for problem in one.problems]
    vllm = {name: one.cfg for name, one in loaded.items() if isinstance(one.cfg, VllmEngineConfig)}
    if len(vllm) > 1 and not found:
        try:
            check_gpu_memory(vllm, machine.count)
        except UserError as error:
            found.append(str(error))
    found += trained.problems if trained is not None else ()
    if not found and peak.total > machine.memory:
        places = {name: getattr(peak, part) for part, name in PARTS.items()}
        largest = max(places, key=lambda part: places[part])
        remedies = [one.remedy for one in loaded.values()] if largest == PARTS["kv"] else []
        if not remedies and trained is not None:
            remedies = [trained.remedy(largest)]
        parts = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in places.items() if size > 5e7)
        found.append(
            f"needs {peak.total / 1e9:.1f} GB on a GPU of {machine.memory / 1e9:.1f} GB ({parts}); "
            f"{', '.join(remedies) or 'use a larger GPU'}."
        )
    return tuple(found)


PARTS = {
    "kv": "KV cache",
    "activations": "activations",
    "weights": "weights",
    "gradients": "gradients",
    "optimiser": "optimiser",
    "other": "other",
}
