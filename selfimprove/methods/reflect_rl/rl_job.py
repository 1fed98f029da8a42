"""The job specification of a run of reinforcement learning, and its report."""

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
    """The specification of a run. ``checkpoints``: its own folder, named by everything that affects the result.

    ``policy_engine`` decodes with the weights that are trained. ``reflector_engine`` can be any engine, but vLLM only
    with one process. Slots are divided among the processes. ``threads`` is the total over all processes.
    ``max_blocked``: largest share of the run's episodes that may be blocked.
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
    max_blocked: float = 1.0

    @property
    def log(self) -> Path:
        """The log, with one line per iteration."""
        return self.checkpoints / LOG


class RLReport(BaseModel):
    """The report of a run. Values from ``seconds`` on differ between repeated runs. ``generated_tokens``: of labels and
    reflections, since the run was resumed.

    ``shortened_prompts``, ``cut_completions``, ``unlisted_actions``: number of ``decisions`` whose prompt (or the
    reflector's) was cut on the left, whose reflection reached the token limit, and whose state had more actions than
    labels. ``update_tokens``: tokens of forward and backward passes; ``rollout_tokens``: the policy's prompt tokens in
    play, twice where the reflection model wrote a reflection. ``real_tokens``: tokens that fine-tuning would process
    with the same compute, where a token in play counts as a third of a trained one.
    """

    iterations: int
    episodes: int
    decisions: int
    blocked: int
    shortened_prompts: int
    cut_completions: int
    unlisted_actions: int
    update_tokens: int
    rollout_tokens: int
    real_tokens: int
    reflector_hash: str | None
    seconds: float = 0.0
    play_seconds: float = 0.0
    generated_tokens: int = 0
    resumed_at: int = 0
