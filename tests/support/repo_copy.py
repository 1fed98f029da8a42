"""A private copy of this repository in which DVC can run, for tests that run real stages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

from selfimprove.pipeline.closure import KNOWN, manifests, scripts

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("selfimprove", "stages", "profiles", "requirements", "data/sources.yaml", "models/pretrained",
         "dvc.yaml", ".dvcignore", ".dvc/config", ".dvc/plots", ".dvc/.gitignore", ".gitignore")  # fmt: skip
LOCKED = ("inputs", "agent_r-data", "rise-finetune@base")
"""Stages of a copy's dvc.lock. DVC writes the file after every stage, which takes two seconds with all stages."""


def copy_repo(folder: Path, profile: str = "smoke") -> Path:
    """Copy everything that stages need to ``folder``, as a git repository with the ``params.yaml`` of ``profile``.

    As in a clone, the headline metrics and (for ``LOCKED``) ``dvc.lock`` are those of the default's run, without its
    other outputs. In an existing copy, the code is replaced and the stages' outputs are kept.
    """
    copy_parts(PARTS, folder)
    if not (folder / "dvc.lock").exists():
        lock = YAML(typ="safe", pure=True).load(ROOT / "dvc.lock")
        YAML().dump({**lock, "stages": {name: lock["stages"][name] for name in LOCKED}}, folder / "dvc.lock")
        shutil.copytree(ROOT / "results/headline", folder / "results/headline")
    run(folder, "git", "init", "--quiet")
    run(folder, sys.executable, "-m", "selfimprove.pipeline.profiles", profile)
    run(folder, "git", "add", "--all")
    author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    run(folder, "git", *author, "commit", "--quiet", "--allow-empty", "-m", "start")
    return folder


def copy_parts(parts: Iterable[str], folder: Path) -> None:
    """Copy files and folders of this repository, replacing those in ``folder``."""
    for part in parts:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    analyse(folder)


_ANALYSIS: list[bytes] = []


def analyse(folder: Path) -> None:
    """Store the analysis of a copy's code where its stages look for it; without it, each stage spends two seconds."""
    known = folder / KNOWN
    known.parent.mkdir(exist_ok=True)
    if _ANALYSIS:
        known.write_bytes(_ANALYSIS[0])
    else:
        manifests(scripts(folder), folder)
        _ANALYSIS.append(known.read_bytes())


def copy_tiny(folder: Path) -> Path:
    """A copy under the default profile with another profile, ``tiny``: smoke with two of Reflect-RL's rows."""
    root = copy_repo(folder, "default")
    small = YAML(typ="safe", pure=True).load(ROOT / "profiles/smoke.yaml")
    one = small["reflect_rl"]
    one["models"] |= {"plain": None, "more_sft": None}
    one["iterations"] |= {"rl_only": None, "no_reflection": None}
    one["rows"] |= {"more_sft": None, "rl_only": None, "no_reflection": None}
    YAML().dump(small, root / "profiles/tiny.yaml")
    return root


def copy_short(folder: Path) -> Path:
    """A copy with its Makefile, under the smoke profile with only SPIN's first iteration, for tests that run make."""
    root = copy_repo(folder)
    shutil.copy2(ROOT / "Makefile", root)
    params = YAML(typ="safe", pure=True).load(root / "params.yaml")
    for part, left_out in (("iterations", ["iter1"]), ("rows", ["iter1", "more_sft"])):
        for name in left_out:
            del params["spin"][part][name]
    YAML().dump(params, root / "params.yaml")
    return root


def environment() -> dict[str, str]:
    """The environment of ``make``: the virtual environment first on the path, no telemetry, stable hashes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONHASHSEED": "0", "DVC_NO_ANALYTICS": "1", "COLUMNS": "200"}
    return os.environ | own


def run(
    folder: Path, *command: str, check: bool = True, timeout: float = 1200, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, with ``more`` added to its environment; a failure shows its output."""
    env = environment() | more
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
