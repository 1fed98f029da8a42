"""A stage that DVC reruns after a param change regenerates its outputs instead of reusing earlier ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.workbench import copy_code, write_params

STAGES = ("data", "generate", "convert")


def examples(folder: Path, about: str) -> str:
    """Training examples of Reflect-RL's policy for a game that ``about`` describes."""
    env = {
        "name": "gymnasium:FrozenLake-v1", "options": {"is_slippery": False}, "about": about, "tasks": 60,
        "actions": ["left", "down", "right", "up"], "max_turns": 16,
    }  # fmt: skip
    write_params(folder, {"reflect_rl": {"env": env, "generate": {"levels": []}, "evaluate": {"levels": []}}})
    for stage in STAGES:
        subprocess.run([sys.executable, "-m", f"stages.reflect_rl.{stage}"], cwd=folder, check=True)
    return (folder / "data/reflect_rl/base/train/sft_policy.jsonl").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_use_the_current_description_of_the_environment(tmp_path: Path) -> None:
    folder = copy_code(tmp_path)
    assert "A frozen lake." in examples(folder, "A frozen lake.")
    later = examples(folder, "A lake of ice.")
    assert "A lake of ice." in later
    assert "A frozen lake." not in later
