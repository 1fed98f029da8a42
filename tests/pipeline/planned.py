"""Helpers of the tests of ``make plan``: no GPU, a folder with an additional profile, and the lines of a plan."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from selfimprove.pipeline.plan import plan as planning
from selfimprove.pipeline.plan.estimate import Estimate
from selfimprove.pipeline.plan.plan import MethodPlan

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"

# An earlier version of the profile reflect-rl-gpt2-xl: the KV caches of two models, with 64 slots each.
SIXTY_FOUR_SLOTS = """
base: {reflect_rl: {model: openai-community/gpt2-xl, revision: 15ea56dee5df4983c59b2538573817e1667135e2}}
reflect_rl:
  engines:
    policy: &small {engine: transformers, model: policy, replicas: 1, slots: 64, context: 1024, prefill_rows: 16,
      prefill_block: 128, dtype: bfloat16, device: cuda}
    reflector: *small
  iterations:
    reflect_rl: {rl: {max_steps: 100, dtype: bfloat16, attention: sdpa, device: cuda, gradient_checkpointing: true,
      lora: {rank: 64, alpha: 16, dropout: 0.0, quantize: 8bit}, launcher: {kind: single, processes: 1}}}
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's GPUs, so that plans are the same everywhere."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(planning, "visible_gpus", lambda: None)


def overlay(tmp_path: Path, text: str) -> Path:
    """A folder of profiles with the default and one more, ``mine``."""
    shutil.copy(PROFILES / "default.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    return tmp_path


def line(plan: MethodPlan, stage: str) -> Estimate:
    """The plan's line for a stage."""
    return next(line for line in plan.lines if line.stage == stage)
