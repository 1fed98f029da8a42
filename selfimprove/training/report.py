"""What a fine-tuning run tells about itself. Everything but ``timing`` is the same on every run."""

from __future__ import annotations

from pydantic import BaseModel

from selfimprove.training.encode import EncodeCounters


class Timing(BaseModel):
    """How long this call took; ``resumed_at`` steps had been done by an earlier one."""

    seconds: float
    tokens_per_second: float
    resumed_at: int = 0


class TrainReport(BaseModel):
    """Counts are over the whole run, repetitions of an example included."""

    steps: int
    examples: int
    tokens: int
    """positions computed, filling included"""
    real_tokens: int
    """tokens read, context included"""
    trained_tokens: int
    """tokens with weight"""
    padding: float
    """share of ``tokens`` that is filling, 0 to 1"""
    mean_weight: float
    """factor by which weighting stretches the mean step, after normalization (RISE spec §5, trap 16)"""
    raw_mean_weight: float
    """mean weight of the examples as they were given"""
    loss: list[tuple[int, float]]
    """(step, mean loss of the steps since the last entry)"""
    counters: EncodeCounters = EncodeCounters()
    rope_factor: float | None = None
    """linear RoPE scaling that was put in, null for none"""
    timing: Timing
