"""The plan of a profile: the requirements of its stages, the totals, and what does not fit."""

import configparser
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.config import EngineConfig, VllmEngineConfig
from selfimprove.models.base import BaseSection
from selfimprove.models.tokenizer import TokenizerSection
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, load_section
from selfimprove.pipeline.plan.estimate import Estimate, estimate
from selfimprove.pipeline.plan.hardware import GB, Asked, Hardware, default_gpu, visible_gpus
from selfimprove.pipeline.plan.shapes import shape_of_base
from selfimprove.pipeline.plan.training import merged_bytes
from selfimprove.pipeline.plan.work import Work
from selfimprove.pipeline.profiles import DEFAULT, FOLDER, composed, named, names
from selfimprove.pipeline.sections import METHOD_SCHEMAS, check_schemas
from selfimprove.training.config import FinetuneParams


@dataclass(frozen=True)
class MethodPlan:
    """The plan of one method of a profile (empty: of params.yaml).

    ``parameters``: of its model; ``notes``: assumed bounds on what the data determine; ``merged``: bytes of LoRA rows
    merged to full weights in scratch; ``problems``: what does not fit.
    """

    profile: str
    method: str
    machine: Hardware
    parameters: int
    lines: Sequence[Estimate]
    notes: Sequence[str]
    merged: float = 0.0

    @property
    def kept(self) -> float:
        """Bytes of all stages' outputs and of the merged copies."""
        return sum(line.kept for line in self.lines) + self.merged

    @property
    def while_running(self) -> float:
        """Largest number of bytes that a stage needs temporarily, besides ``kept``."""
        return max(line.while_running for line in self.lines)

    @property
    def hours(self) -> float | None:
        """Hours of all stages that use GPUs; None if no stage does."""
        known = [line.hours for line in self.lines if line.gpus and line.hours is not None]
        return sum(known) if known else None

    @property
    def bottleneck(self) -> Estimate:
        """The stage with the most hours."""
        return max(self.lines, key=lambda line: line.hours or 0.0)

    @property
    def cost(self) -> float | None:
        """Cost of all GPUs of all machines for the plan's hours and of the endpoints' tokens; None without prices."""
        machine = self.machine
        if machine.hourly is None or (self.remote and machine.price is None):
            return None
        read, written = machine.price or (0.0, 0.0)
        tokens = sum(counts[1] * read + counts[2] * written for counts in self.remote.values()) / 1e6
        return (self.hours or 0.0) * machine.gpus * machine.hourly + tokens

    @property
    def remote(self) -> dict[str, tuple[int, int, int]]:
        """(requests, tokens read, tokens written) by endpoint engine."""
        found: dict[str, tuple[int, int, int]] = {}
        for line in self.lines:
            for name, counts in line.remote.items():
                before = found.get(name, (0, 0, 0))
                found[name] = (before[0] + counts[0], before[1] + counts[1], before[2] + counts[2])
        return found

    @property
    def problems(self) -> list[str]:
        """What does not fit, one sentence per problem."""
        stages: dict[str, list[str]] = {}
        for line in self.lines:
            for problem in line.problems:
                stages.setdefault(problem, []).append(line.stage)
        found = [f"{', '.join(names)}: {problem}" for problem, names in stages.items()]
        disk = self.kept + self.while_running
        if self.machine.disk is not None and disk > self.machine.disk:
            worst = max(self.lines, key=lambda line: line.kept + line.while_running)
            fewer = "lower its save_total_limit, " if worst.while_running else ""
            found.append(
                f"{self.method}: the run needs {_gb(disk)} of disk, but DISK is {_gb(self.machine.disk)}, and "
                f"{worst.stage} takes the most ({_gb(worst.kept + worst.while_running)}); {fewer}remove iterations or "
                "controls, or use a larger disk."
            )
        return found


def _gb(number: float) -> str:
    return f"{number / GB:.{0 if number >= 100 * GB else 2}f} GB"


def disk_of(found: Sequence[MethodPlan]) -> float:
    """Bytes on disk that several methods need if run one after another."""
    return sum(plan.kept for plan in found) + max(plan.while_running for plan in found)


def faults(found: Sequence[MethodPlan]) -> list[str]:
    """The problems of each method; without any, whether the disk suffices for all of them together."""
    said = [problem for plan in found for problem in plan.problems]
    disk = found[0].machine.disk if found else None
    if not said and disk is not None and (needed := disk_of(found)) > disk:
        said.append(
            f"{', '.join(plan.method for plan in found)}: together they need {_gb(needed)} of disk, but DISK is "
            f"{_gb(disk)}; plan one METHOD at a time, or use a larger disk."
        )
    return said


def plans(
    profile: str = "",
    method: str = "all",
    asked: Asked = Asked(),  # noqa: B008 - never changed
    *,
    folder: Path = FOLDER,
) -> list[MethodPlan]:
    """The plans of a profile's methods, or of one method; without a profile, of params.yaml as it is.

    Raises:
        UserError: no such profile, a method that it does not configure, invalid params, or a model whose config is not
            available.
    """
    values = composed(profile, folder) if profile else read_yaml(PARAMS_FILE)
    written = profile or named(PARAMS_FILE.read_text(encoding="utf-8"))
    own = methods_of(written if written in names(folder) else DEFAULT, folder)
    if not profile:
        default = composed(DEFAULT, folder)
        own = [name for name in METHODS if name in own or _sections(values, name) != _sections(default, name)]
    if method not in ("all", *own):
        raise UserError(
            f"profile {written!r} sets up only {', '.join(own)}; its {method} is the default's: plan that with "
            f"PROFILE={DEFAULT} METHOD={method}."
        )
    where = f"{folder}/{profile}.yaml" if profile else str(PARAMS_FILE)
    check_schemas(values, where)  # of all sections, since a fault in any would end the run
    asked_for = own if method == "all" else [method]
    return [make_plan(profile, values, name, asked, where, named_memory(written)) for name in asked_for]


def _sections(values: Mapping[str, Any], method: str) -> list[Any]:
    """The parts of the params that concern one method alone."""
    return [values.get(method), *((values.get(part) or {}).get(method) for part in ("base", "tokenizer"))]


def methods_of(profile: str, folder: Path = FOLDER) -> list[str]:
    """The methods that a profile configures: those named in its own file, or all (for the default)."""
    if profile == DEFAULT:
        return list(METHODS)
    own = read_yaml(folder / f"{profile}.yaml")
    return [name for name in METHODS if name in own] or list(METHODS)


def make_plan(profile: str, values: dict[str, Any], method: str, asked: Asked, where: str, memory: float) -> MethodPlan:
    """The plan of one method under the params ``values`` of the file ``where``; ``memory``: assumed bytes per GPU."""
    base = getattr(load_section(values, "base", BaseSection, where), method)
    vocab = getattr(load_section(values, "tokenizer", TokenizerSection, where), method).vocab_size
    params: Any = load_section(values, method, METHOD_SCHEMAS[method], where)
    told = importlib.import_module(f"selfimprove.pipeline.plan.{method}")
    works: list[Work] = told.works(params)
    shape = shape_of_base(base, vocab)
    machine = choose_machine(works, params.engines, asked, memory)
    works = [widened(work, machine) for work in works] if asked.wide else works
    runs = [work.training.params for work in works if work.training is not None]
    longest = max((run.max_length for run in runs if isinstance(run, FinetuneParams)), default=0)
    lines = [estimate(work, params.engines, method, shape, machine, longest) for work in works]
    factor = stored_copies()
    lines = [replace(line, kept=line.kept * factor) for line in lines]
    merged = merged_bytes((work.training for work in works if work.training is not None), shape)
    return MethodPlan(profile, method, machine, shape.parameters, lines, told.NOTES, merged)


def widened(work: Work, machine: Hardware) -> Work:
    """The work with fine-tuning spread over all GPUs of all machines, but at most one per example of a step."""
    training = work.training
    if training is None or not isinstance(training.params, FinetuneParams) or training.params.device != "cuda":
        return work
    launcher = training.params.launcher
    kind = "deepspeed" if launcher.kind == "deepspeed" else "torchrun"
    nodes = max(1, min(machine.nodes, training.params.batch_size // machine.count))
    processes = min(machine.count, training.params.batch_size)
    launcher = launcher.model_copy(update={"kind": kind, "nodes": nodes, "processes": processes})
    params = training.params.model_copy(update={"launcher": launcher})
    return replace(work, training=replace(training, params=params))


def choose_machine(works: Sequence[Work], engines: Mapping[str, EngineConfig], asked: Asked, memory: float) -> Hardware:
    """The requested GPUs; otherwise this machine's; otherwise as many as launchers and engines name, with ``memory``
    bytes each."""
    if asked.gpus is not None:
        count, each, default = *asked.gpus, default_gpu(asked.gpus[1])
    else:
        count, each, default = visible_gpus() or (_named_count(works, engines), memory, default_gpu(memory))
    return Hardware(count, each, asked.gpu or default, asked.disk, asked.price, asked.nodes, asked.hourly)


def _named_count(works: Sequence[Work], engines: Mapping[str, EngineConfig]) -> int:
    counts = [1]
    for work in works:
        if work.training is not None and not work.training.untrained and work.training.params.device == "cuda":
            counts.append(work.training.params.launcher.processes)
        for call in work.calls:
            cfg = engines[call.engine]
            if isinstance(cfg, VllmEngineConfig):
                counts.append(cfg.tensor_parallel * (1 if cfg.replicas == "auto" else cfg.replicas))
    return max(counts)


def named_memory(profile: str) -> float:
    """Memory, in bytes, of the GPU that a profile targets: the size at the end of its name (rise-24gb), else 80 GB."""
    size = re.search(r"-(\d+)gb$", profile)
    return float(size[1]) * GB if size else 80.0 * GB


def stored_copies(config: Path = Path(".dvc/config")) -> int:
    """Number of copies of an output on disk: 1 if DVC links its cache (``cache.type``), else 2, because DVC then copies
    except on file systems with reflinks."""
    parser = configparser.ConfigParser()
    parser.read(config)
    kinds = parser.get("cache", "type", fallback="").replace('"', "").split(",")
    return 1 if {"hardlink", "symlink"} & {kind.strip() for kind in kinds} else 2
