"""``make check``: checks before a run, which ``make repro`` and ``make exp`` also perform first.

Every section of params.yaml is validated, and all faults are reported, not only the first. For each named method that
has no results of these params yet, the requirements that its stages would otherwise miss late are checked: API keys,
packages, files, a GPU, models, templates.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.git import NO_REPOSITORY, has_repository
from selfimprove.core.named_templates import NAMED_TEMPLATES
from selfimprove.core.params import Section
from selfimprove.core.tracking import TrackingParams, check_package
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.api_key import find_key
from selfimprove.engines.cluster.config import in_use, use
from selfimprove.engines.config import (
    POLICY,
    EngineConfig,
    OpenAiEngineConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
)
from selfimprove.engines.openai import endpoint_of
from selfimprove.engines.vllm.checks import check_installed, positions, replica_count
from selfimprove.envs.params import EnvParams, TextParams
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.qa.tools.serpapi import SerpApiSearch
from selfimprove.envs.sciworld.jvm import find_java
from selfimprove.envs.sciworld.world import SciWorldParams
from selfimprove.envs.taxi.world import TaxiParams
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.tasks import build_splits
from selfimprove.models.base import MADE, BaseParams, BaseSection
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, UNKNOWN, RunParams, load_section
from selfimprove.pipeline.plan.hardware import visible_gpus
from selfimprove.pipeline.plan.shapes import find_config, usable_positions
from selfimprove.pipeline.recorded import ABSENT, GRAPH, has_results, planned, value_at
from selfimprove.pipeline.sections import SCHEMAS, schema_faults
from selfimprove.pipeline.small_defaults import small_settings
from selfimprove.training.config import FinetuneParams

SAY = "--say"
"""Option of ``make check``: report success as well; before a run, only faults are printed."""
OUTDATED = 4
"""Number of unknown keys from which a params.yaml may be that of an earlier version."""
PARAMS_ONLY = "params"
"""In place of a method: check only params.yaml."""
LOCAL = ("models/", "/", "./", "../")
"""Prefixes of model names that must be folders; any other name may be on the hub."""
FILE_KEYS = (
    "beginnings", "expert_file", "experts", "file", "files", "folder", "games", "general_file", "prior", "problems",
    "recipes", "repos", "snippets",
)  # fmt: skip
"""Keys that name an input file or folder, or a mapping to several, where their value is text."""
OWN_ENGINE = {"rise": "student", "agent_r": "actor", "spin": "policy"}
"""The engine that plays with each row's own model. Reflect-RL's may not be an endpoint."""
GPU_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""Device files, one of which exists if the NVIDIA driver is installed (the last under WSL)."""


@one_sentence()
def main() -> None:
    """Arguments: the methods about to run (none: all), or ``PARAMS_ONLY``; ``--say``: see ``SAY``.

    Raises:
        UserError: one sentence per fault.
    """
    asked = [word for word in sys.argv[1:] if word != SAY]
    methods = [method for method in METHODS if method in asked or not asked]
    for word in asked:
        if word not in METHODS and word != PARAMS_ONLY:
            raise UserError(f"there is no method {word!r}; choose {', '.join(METHODS)}, or {PARAMS_ONLY}.")
    faults, missing = run_faults(read_yaml(PARAMS_FILE), methods)
    faults += folder_faults(Path.cwd())
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    if SAY in sys.argv:
        listed = ", ".join(missing or methods)
        needs = f"the keys, packages, files, models and GPUs that {listed} will need are available"
        rest = needs if missing else f"all results of {listed} exist"
        print(f"{PARAMS_FILE}: all {len(SCHEMAS)} sections are valid, and {rest}.")


def run_faults(values: dict[str, Any], methods: Sequence[str]) -> tuple[list[str], list[str]]:
    """All faults that a run of ``methods`` with these params would meet, and the methods that have no results of them.

    If a method's settings look too small for its own model, or its rows cannot differ, a warning is printed.
    """
    faults = list(params_faults(values))
    if faults:
        return faults, []
    use(load_section(values, "run", RunParams, str(PARAMS_FILE)).cluster.asked())
    base = load_section(values, "base", BaseSection, str(PARAMS_FILE))
    missing = [method for method in methods if not has_results(method, values)]
    for method in missing:
        section = load_section(values, method, SCHEMAS[method], str(PARAMS_FILE))
        lacking = machine_faults(section, os.environ)
        faults += [f"{method}: {fault.removeprefix(f'{method}.')}" for fault in lacking]
        wrong_base = list(base_faults(method, getattr(base, method)))
        faults += wrong_base or context_faults(method, section, getattr(base, method))
        for warning in () if wrong_base else (small_settings(values, method), endpoint_in_every_row(method, section)):
            if warning:
                print(warning, file=sys.stderr)
    return faults, missing


def folder_faults(folder: Path) -> Iterator[str]:
    """Where DVC cannot work: outside git repositories (unless its settings say so), and below some names."""
    settings = [one for one in (folder / ".dvc/config", folder / ".dvc/config.local") if one.is_file()]
    if settings and not has_repository(folder) and not any("no_scm" in one.read_text("utf-8") for one in settings):
        yield f"{NO_REPOSITORY}."
    if {*str(folder)} & {*"{}"}:
        yield f"the folder's path {folder} contains a curly bracket, which DVC cannot read; rename or move the folder."
    if not _is_unicode(str(folder)):
        yield f"the folder's path {folder} is not UTF-8, so DVC cannot record it; rename or move the folder."


def _is_unicode(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # Python keeps other bytes as surrogates
        return False
    return True


def params_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per invalid key and per key missing for DVC, and one if the tracking package cannot be used."""
    faults = list(schema_faults(values, str(PARAMS_FILE)))
    yield from faults
    if sum(UNKNOWN in fault for fault in faults) >= OUTDATED:
        yield (
            f'{PARAMS_FILE} may be of an earlier version; docs/reference.md lists the new names under "Names that '
            'changed", and `make use PROFILE=…` writes a profile as it is now.'
        )
    if not faults and GRAPH.is_file():
        yield from graph_faults(values, _graph(GRAPH.absolute(), GRAPH.stat().st_mtime_ns))
    with suppress(ValidationError):  # already reported
        yield from _said("", check_package, TrackingParams.model_validate(values.get("tracking", {})))


def graph_faults(values: Mapping[str, Any], stages: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per key that DVC reads for a stage and that the file lacks; ``stages``: the ones in dvc.yaml.

    The schemas have a default for such a key. DVC has none and would fail in the middle of the run.
    """
    told = set()
    for reader, keys in planned(stages, values):
        for key in keys:
            if key in told or value_at(values, key) is not ABSENT:
                continue
            told.add(key)
            method, last = key.partition(".")[0], key.rpartition(".")[2]
            shared = value_at(values, f"{method}.train.{last}") if ".train." in key else ABSENT
            remedy = "its default is in docs/params.md" if shared is ABSENT else f"{method}.train has {shared}"
            yield f"{PARAMS_FILE}: {key}: missing, but DVC reads it for stage {reader}; add it ({remedy})."


@cache
def _graph(file: Path, _changed: int) -> Mapping[str, Any]:
    """The stages of a dvc.yaml, cached for all points of a grid. Raises: UserError: they are not mappings."""
    stages = read_yaml(file).get("stages")
    if isinstance(stages, Mapping):
        bodies = [one.get("do", one) if isinstance(one, Mapping) else None for one in stages.values()]
        if all(isinstance(one, Mapping) and isinstance(one.get("params", []), list) for one in bodies):
            return stages
    raise UserError(f"{file.name}: a stage is damaged; correct it, or run `git restore {file.name}`.")


def machine_faults(section: Section, environment: Mapping[str, str]) -> Iterator[str]:
    """What a method's section needs and this machine or environment lacks: keys, packages, files, levels, GPUs."""
    engines = used_engines(section)
    for name, engine in engines.items():
        place = f"engines.{name}: "
        if isinstance(engine, OpenAiEngineConfig):
            yield from _said(place, endpoint_of, engine.base_url)
            yield from _said(place, find_key, engine.api_key_env, engine.api_key_file, environment)
        if isinstance(engine, VllmEngineConfig):
            yield from _said(place, check_installed)
    for key in ("tools", "play_tools"):
        tools = getattr(section, key, None)
        if isinstance(tools, ToolsParams) and "serpapi" in tools.use.values():
            yield from _said(f"{key}: ", SerpApiSearch, tools.serpapi, environment)
    if isinstance(section, ReflectRLParams):
        yield from _played_faults(section)
    env = getattr(section, "env", None)
    for one in (env, *env.mixed()) if isinstance(env, EnvParams) else ():
        if isinstance(one, TextParams) and one.server is not None:
            yield from _said("", one.world)
        if isinstance(one, SciWorldParams) and one.server is None and in_use().kind != "ray":  # Ray's nodes have Java
            yield from _said("env: ", find_java)
        yield from _missing_files("env.", one)
    yield from _missing_files("", section)
    for key, template in every(section, "chat_template"):
        yield from _template_faults(key, template)
    devices = dict(every(section, "device"))
    if "cuda" in devices.values() and not any(Path(file).exists() for file in GPU_FILES):
        key = next(key for key, value in devices.items() if value == "cuda")
        yield f"{key} is cuda, but this machine has no NVIDIA GPU; `make rehearse` runs a GPU profile on a CPU."
    elif "cuda" in devices.values():
        yield from compiler_faults(Path(sysconfig.get_path("include")))
    computes = "cuda" in devices.values() or any(isinstance(one, VllmEngineConfig) for one in engines.values())
    if computes and in_use().kind == "none" and (gpus := visible_gpus()) is not None:
        yield from gpu_faults(section, gpus[0])
    yield from precision_faults(section)
    for key, value in every(section, "quantize"):
        if value != "none" and find_spec("bitsandbytes") is None:
            yield f"{key} is {value}, which needs the package bitsandbytes; run `make setup ACCELERATOR=cuda`."
            break


def gpu_faults(section: Section, gpus: int) -> Iterator[str]:
    """One training and each vLLM engine that need more GPUs than the ``gpus`` of this machine."""
    for key, train in trainings(section):  # reinforcement learning uses one GPU
        if train.device == "cuda" and train.launcher.processes > gpus:
            have = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
            yield f"{key}.launcher.processes is {train.launcher.processes}, but this machine has only {have}; lower it."
            break
    for name, engine in used_engines(section).items():
        if isinstance(engine, VllmEngineConfig):
            yield from _said(f"engines.{name}: ", replica_count, engine, gpus)


def precision_faults(section: Section) -> Iterator[str]:
    """The first setting that the device of its training lacks; the trainer, which loads torch, refuses the same."""
    for key, train in trainings(section):
        if train.tf32 and train.device == "cpu":
            yield f"{key}.tf32: only GPUs support it; remove the line or set device: cuda."
            break
        if train.attention == "flash_attention_2" and (train.device == "cpu" or train.dtype == "float32"):
            yield f"{key}.attention: flash_attention_2 needs device: cuda and dtype: bfloat16; set these, or sdpa."
            break


def trainings(section: Section) -> Iterator[tuple[str, FinetuneParams]]:
    """The key and settings of each fine-tuning that trains; the shared settings alone start none."""
    for key, train in every(section, "train"):
        if isinstance(train, FinetuneParams) and key != "train" and (train.epochs or train.max_train_tokens):
            yield key, train


def compiler_faults(headers: Path) -> Iterator[str]:
    """What Triton, which compiles a C launcher for each kernel, lacks here; ``headers``: folder of Python's headers."""
    lacking = []
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc")))):
        lacking.append("a C compiler")
    if not (headers / "Python.h").is_file():
        lacking.append(f"Python's headers ({headers})")
    if lacking:
        remedy = "`sudo apt-get install gcc python3.11-dev` installs both"
        yield f"device is cuda, and Triton's kernels need {' and '.join(lacking)}, which this machine lacks; {remedy}."


def base_faults(method: str, base: BaseParams) -> Iterator[str]:
    """Models and templates that a method's ``base`` names by path and that do not exist."""
    place, model = f"base.{method}", base.model or ""
    if model in MADE and not Path(model).is_dir():
        yield f"{place}.model: {model} does not exist yet; {MADE[model]}."
    elif model.startswith(LOCAL) and not os.path.isdir(model):
        yield f"{place}.model: folder {model} does not exist; name an existing folder, or a hub model as owner/name."
    if base.chat_template is not None:
        yield from _template_faults(f"{place}.chat_template", base.chat_template)


def context_faults(method: str, section: Section, base: BaseParams) -> Iterator[str]:
    """Engines with a context beyond their model's positions, which stages refuse only after the first training.

    A model whose config is not available here is not checked.
    """
    trained = [one.max_length for _, one in every(section, "train") if isinstance(one, FinetuneParams)]
    for name, engine in used_engines(section).items():
        if not isinstance(engine, TransformersEngineConfig | VllmEngineConfig):
            continue
        model, revision = (base.model, base.revision) if engine.model == POLICY else (engine.model, None)
        limit = base.arch.positions if model is None else _positions(model, revision)
        limit = limit and usable_positions(engine, limit, max(trained))
        if limit is None or engine.context <= limit:
            continue
        remedy = f"lower it, or raise base.{method}.arch.positions" if model is None else "lower it"
        yield (
            f"{method}: engines.{name}.context is {engine.context}, but {model or 'the model'} has only {limit} "
            f"positions; {remedy}."
        )


def _positions(model: str, revision: str | None) -> int | None:
    with suppress(UserError):  # the stage that reads the file reports that it is damaged
        found = find_config(model, revision)
        return positions(found[0]) if found and isinstance(found[0], Mapping) else None
    return None


def endpoint_in_every_row(method: str, section: Section) -> str | None:
    """A warning if an endpoint plays in place of the rows' own models; None otherwise."""
    name = OWN_ENGINE.get(method, "")
    engine = getattr(section, "engines", {}).get(name)
    if not isinstance(engine, OpenAiEngineConfig):
        return None
    return (
        f"WARNING: {method}.engines.{name} is an endpoint: every row is evaluated with its model {engine.model}, and "
        "none with the model that it trains, so the rows differ by chance only. To compare them, set engine: vllm or "
        "transformers, with model: policy."
    )


def _missing_files(place: str, section: BaseModel) -> Iterator[str]:
    for wanted in FILE_KEYS:
        for key, named in every(section, wanted):
            if key == "tasks.experts" or ".options." in key:  # SPIN's choice of experts; a class's own options
                continue
            for path in named.values() if isinstance(named, Mapping) else [named]:
                if isinstance(path, str) and not os.path.exists(path):
                    yield f"{place}{key.replace('.inner', '')}: {path} does not exist; name an existing file or folder."


def _template_faults(key: str, template: str) -> Iterator[str]:
    if template not in NAMED_TEMPLATES and not os.path.isfile(template):
        yield f"{key}: {template!r} is neither one of {', '.join(NAMED_TEMPLATES)} nor a file; name one that exists."


def _played_faults(section: ReflectRLParams) -> Iterator[str]:
    """Levels and tasks that the environment lacks; not checked if tasks come from a file, which determines both."""
    asked = {"generate.levels": section.generate.levels, "evaluate.levels": section.evaluate.levels}
    taxi = isinstance(section.env, TaxiParams)
    if section.env.takes_task_file or not (taxi or any(asked.values())):
        return  # other environments may be slow to list their tasks
    env = section.env.make()
    if taxi:
        yield from _said("", partial(build_splits, seed=0), section.tasks, env)
    for place, levels in asked.items():
        for level in levels:
            yield from _said(f"{place}: ", env.level_tasks, level, [])


def _said(place: str, check: Callable[..., object], *arguments: object) -> Iterator[str]:
    """Run a check and yield its error message, if any, prefixed with ``place``."""
    try:
        check(*arguments)
    except UserError as error:
        yield f"{place}{error}"


def used_engines(section: Section) -> dict[str, EngineConfig]:
    """The engines that the section uses, by name."""
    used = engines_in(section)
    return {name: engine for name, engine in getattr(section, "engines", {}).items() if name in used}


def engines_in(section: Section) -> set[str]:
    """Names of engines that the section uses (``evaluate`` uses those that hold the trained model)."""
    named = {"student", "actor", "policy", "reflector"}
    for key in ("engine", "teacher", "models", "judge"):
        for _, value in every(section, key):
            named.update([value] if isinstance(value, str) else value if isinstance(value, Sequence) else [])
    return named


def every(value: Any, wanted: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key path, value) of every field or entry named ``wanted``, at any depth, unless it is None."""
    if isinstance(value, BaseModel):
        entries = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, Mapping):
        entries = list(value.items())
    else:
        return
    for name, inner in entries:
        path = f"{place}.{name}" if place else str(name)
        if name == wanted and inner is not None:
            yield path, inner
        yield from every(inner, wanted, path)


if __name__ == "__main__":
    main()
