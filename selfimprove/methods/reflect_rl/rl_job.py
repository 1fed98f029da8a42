"""The job of a run of reinforcement learning, and its report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from selfimprove.engines.config import EngineConfig, TransformersEngineConfig
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.methods.reflect_rl.prompts import MARKERS, Markers
from selfimprove.methods.reflect_rl.rl_config import RLParams

LOG = "log.jsonl"


@dataclass(frozen=True)
class RLJob:
    """The job of a run. ``checkpoints``: a folder of its own, named by everything that decides the result.

    ``policy_engine``, ``reflector_engine``: how each model decodes. The policy's engine decodes over the weights that
    are trained; the reflection model's may be any, and vLLM's in one process only. Slots are shared out to the
    processes. ``threads`` are all processes' together.
    """

    model_dir: Path
    reflector_dir: Path | None
    out_dir: Path
    checkpoints: Path
    env: EnumeratedEnv
    tasks: Sequence[int]
    params: RLParams
    policy_engine: TransformersEngineConfig
    reflector_engine: EngineConfig
    seed: int
    threads: int
    markers: Markers = MARKERS["spaced"]

    @property
    def log(self) -> Path:
        """One line an iteration."""
        return self.checkpoints / LOG


class RLReport(BaseModel):
    """The report of a run. Everything from ``seconds`` on differs between runs; ``generated_tokens``: since it was
    resumed, labels and reflections.

    ``shortened_prompts``, ``cut_completions``: of ``decisions``, those whose prompt (or the reflector's) lost its left
    side, or whose reflection the token limit ended. ``update_tokens``: read forwards and backwards, every pass;
    ``rollout_tokens``: prompts read by both models in play. ``real_tokens``: what fine-tuning would read for as much
    compute, a token in play being a third of a trained one.
    """

    iterations: int
    episodes: int
    decisions: int
    blocked: int
    shortened_prompts: int
    cut_completions: int
    update_tokens: int
    rollout_tokens: int
    real_tokens: int
    reflector_hash: str | None
    seconds: float = 0.0
    play_seconds: float = 0.0
    generated_tokens: int = 0
    resumed_at: int = 0
