"""Provenance of a run's numbers: commit, profile, params that differ from it, seed, versions, CPU kernels."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from selfimprove.apps.page.run import Run
from selfimprove.apps.report.compare import flat
from selfimprove.core.errors import UserError, some
from selfimprove.core.git import git as ask_git
from selfimprove.pipeline.kernels import name_of
from selfimprove.pipeline.params import PARAMS_FILE
from selfimprove.pipeline.profiles import DEFAULT, FOLDER, composed, named

NAMED = 8
"""Maximum number of files listed that differ from the commit."""

AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}

SHOWN = ("torch", "transformers", "numpy", "tokenizers", "dvc", "peft", "vllm")


def git(run: Run, *arguments: str) -> str:
    """The output of a git command, "" if it fails."""
    code, said = ask_git(*arguments, folder=run.root)
    return said.strip() if code == 0 else ""


def facts(run: Run) -> list[tuple[str, str]]:
    """(label, value) pairs that describe the run."""
    changed = git(run, "status", "--porcelain", "--untracked-files=no").splitlines()
    commit = git(run, "log", "-1", "--format=%h %cs %s")
    names = [line[2:].strip() for line in changed]
    packages = _packages(run)
    return [
        ("commit", commit or "not a Git repository"),
        ("uncommitted changes", f"{len(names)}: {some(names, NAMED)}" if names else "none"),
        ("profile", profile(run)),
        ("seed", _set(run.run_param("seed"))),
        ("threads", _set(run.run_param("threads"))),
        ("CPU kernels (run.kernels)", _set(run.run_param("kernels"))),
        ("package versions", ", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages)),
        ("CPU that built this page", _processor()),
        ("CPU kernels that built this page", _kernels()),
        ("Python that built this page", platform.python_version()),
    ]


def _set(value: Any) -> str:
    return "not set" if value is None else str(value)


def profile(run: Run) -> str:
    """The profile named in ``params.yaml``, and how many of the run's params differ from it."""
    path = run.root / PARAMS_FILE
    name = named(path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")
    changed = len(own_params(run, name))
    return f"{name} with {changed} changed param{'s' * (changed != 1)}" if changed else name


def own_params(run: Run, name: str = DEFAULT) -> list[tuple[str, str, str]]:
    """(key, profile's value, run's value) of every param that differs from the profile; [] if there is no such file."""
    try:
        params = composed(name, run.root / FOLDER)
    except (UserError, OSError):
        return []
    return differing(params, run.params)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(dotted key, old value, new value) of every difference; "–" marks a missing value."""
    before, after = dict(flat(old)), dict(flat(new))
    keys = [key for key in sorted({**before, **after}) if before.get(key) != after.get(key)]
    return [(key, _said(before, key), _said(after, key)) for key in keys]


def _said(values: Mapping[str, Any], key: str) -> str:
    return str(values[key]) if key in values else "–"


def _packages(run: Run) -> dict[str, str]:
    """Package -> version in the environment of the run's stages, or in this environment if no stage has run."""
    try:
        lines = (run.root / "data/code/environment.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {one.metadata["Name"]: one.version for one in distributions()}
    return {name: number for name, _, number in (line.partition("==") for line in lines)}


def _processor() -> str:
    names = _cpuinfo("model name")
    return f"{names[0]}, {len(names)} threads" if names else platform.machine()


def _kernels() -> str:
    """The kernels that torch would choose (its environment variable, or the widest), without the slow import."""
    flags = set(" ".join(_cpuinfo("flags")[:1]).split())
    wide = "avx512" if flags >= AVX512 else "avx2" if flags >= AVX2 else "default"
    return name_of(os.environ.get("ATEN_CPU_CAPABILITY", wide))


def _cpuinfo(key: str) -> list[str]:
    """One value per CPU; [] if ``/proc/cpuinfo`` is not available."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(key)]
