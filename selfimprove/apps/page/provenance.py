"""Where a run's numbers come from: commit, profile and own params, seed, versions, processor kernels."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from selfimprove.apps.page.run import Run
from selfimprove.apps.report.compare import flat
from selfimprove.core.errors import UserError
from selfimprove.pipeline.profiles import DEFAULT, FOLDER, PARAMS, PROFILE_MARK, composed

SHOWN = ("torch", "transformers", "numpy", "tokenizers", "dvc", "peft", "vllm")


def git(run: Run, *arguments: str) -> str:
    """What git says; "" where it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=run.root, capture_output=True, text=True, check=False, errors="replace"
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def facts(run: Run) -> list[tuple[str, str]]:
    """(what, value) of the run."""
    changed = git(run, "status", "--porcelain", "--untracked-files=no").splitlines()
    commit = git(run, "log", "-1", "--format=%h %cs %s")
    versions = [f"{name} {found}" for name in SHOWN if (found := _version(name))]
    return [
        ("commit", commit or "not a Git repository"),
        ("files that differ from the commit", ", ".join(line[2:].strip() for line in changed) or "none"),
        ("profile", profile(run)),
        ("seed", str((run.params.get("run") or {}).get("seed", "not set"))),
        ("threads", str((run.params.get("run") or {}).get("threads", "not set"))),
        ("processor", _processor()),
        ("kernels", os.environ.get("ATEN_CPU_CAPABILITY", "torch's choice for this processor")),
        ("versions", ", ".join(versions)),
        ("Python", platform.python_version()),
    ]


def profile(run: Run) -> str:
    """The profile that ``params.yaml`` names."""
    path = run.root / PARAMS
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(rf"^# {PROFILE_MARK}([\w.-]+)\.$", text, re.MULTILINE)
    return found[1] if found else DEFAULT


def own_params(run: Run) -> list[tuple[str, str, str]]:
    """(key, the default profile's value, the run's) of every param that differs from the default profile."""
    try:
        default = composed(DEFAULT, run.root / FOLDER)
    except (UserError, OSError):
        return []
    return differing(default, run.params)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(dotted key, old value, new value) of what differs, "–" where there is none."""
    before, after = dict(flat(old)), dict(flat(new))
    keys = [key for key in sorted({**before, **after}) if before.get(key) != after.get(key)]
    return [(key, _said(before, key), _said(after, key)) for key in keys]


def _said(values: Mapping[str, Any], key: str) -> str:
    return str(values[key]) if key in values else "–"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0]}, {len(names)} threads" if names else platform.machine()
