"""``make check``: checks that need no run. ``make repro`` and ``make exp`` do them first.

It validates every section of params.yaml and reports every fault, not only the first. For the methods that are named
and have no results yet it checks what their stages would miss late: API keys, packages, a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.tracking import TrackingParams, check_package
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.api_key import find_key
from selfimprove.engines.config import OpenAiEngineConfig, VllmEngineConfig
from selfimprove.engines.vllm.checks import check_installed
from selfimprove.pipeline.params import METHODS, load_section, section_faults
from selfimprove.pipeline.sections import SCHEMAS
from selfimprove.pipeline.small_defaults import small_settings

PARAMS_FILE = Path("params.yaml")
RESULTS = Path("results/summary")
GPU_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""Device files, one of which exists where the NVIDIA driver is installed (the last: under WSL)."""


def main() -> None:
    """Arguments: the methods that are about to run; none: all. Exit with 2 and a sentence a fault."""
    asked = sys.argv[1:]
    methods = [method for method in METHODS if method in asked or not asked]
    try:
        faults = list(params_faults(read_yaml(PARAMS_FILE)))
        if not faults:
            sections = read_yaml(PARAMS_FILE)
            missing = [method for method in methods if not (RESULTS / f"{method}.json").is_file()]
            for method in missing:
                section = load_section(sections, method, SCHEMAS[method], str(PARAMS_FILE))
                faults += [f"{method}: {fault}" for fault in machine_faults(section, os.environ)]
                if warning := small_settings(sections, method):
                    print(warning, file=sys.stderr)
    except UserError as error:
        faults = [str(error)]
    if faults:
        print("\n".join(dict.fromkeys(faults)), file=sys.stderr)
        sys.exit(2)
    if not asked:
        print(f"{PARAMS_FILE}: {len(SCHEMAS)} sections are valid, and what {', '.join(methods)} need is there.")


def params_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each key that does not fit, and one if curves are wanted where they cannot be sent."""
    values = {"tracking": {}, **values}
    for name, schema in SCHEMAS.items():
        faults = section_faults(values, name, schema, str(PARAMS_FILE))
        yield from faults
        if schema is TrackingParams and not faults:
            try:
                check_package(TrackingParams.model_validate(values[name]))
            except UserError as error:
                yield str(error)


def machine_faults(section: Section, environment: Mapping[str, str]) -> Iterator[str]:
    """What a method's section needs and this machine lacks: keys, packages, GPUs."""
    used = engines_in(section)
    for name, engine in getattr(section, "engines", {}).items():
        if name not in used:
            continue
        if isinstance(engine, OpenAiEngineConfig):
            try:
                find_key(engine.api_key_env, engine.api_key_file, environment)
            except UserError as error:
                yield f"engines.{name}: {error}"
        if isinstance(engine, VllmEngineConfig):
            try:
                check_installed()
            except UserError as error:
                yield f"engines.{name}: {error}"
    devices = dict(every(section, "device"))
    if "cuda" in devices.values() and not any(Path(file).exists() for file in GPU_FILES):
        key = next(key for key, value in devices.items() if value == "cuda")
        yield f"{key} is cuda, but there is no NVIDIA GPU here; `make rehearse` runs a GPU profile on a CPU."
    for key, value in every(section, "quantize"):
        if value != "none" and find_spec("bitsandbytes") is None:
            yield f"{key} is {value}, which needs the package bitsandbytes; run `make setup ACCELERATOR=cuda`."
            break


def engines_in(section: Section) -> set[str]:
    """Names of engines that anything in the section asks (``evaluate`` asks those that hold the trained model)."""
    named = {"student", "actor", "policy", "reflector"}
    for key in ("engine", "teacher", "models", "judge"):
        for _, value in every(section, key):
            named.update([value] if isinstance(value, str) else value if isinstance(value, Sequence) else [])
    return named


def every(value: Any, wanted: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """(key path, value) of every field or entry called ``wanted``, at any depth."""
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
