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
    """positions computed, padding included"""
    real_tokens: int
    """tokens read, context included"""
    trained_tokens: int
    """tokens with weight"""
    padding: float
    """share of ``tokens`` that is padding, 0 to 1"""
    mean_weight: float
    """factor by which weighting stretches the mean step, after normalization"""
    raw_mean_weight: float
    """mean weight of the examples as they were given"""
    loss: list[tuple[int, float]]
    """(step, mean loss of the steps since the last entry)"""
    held_out: int = 0
    """examples that were only measured"""
    evaluations: list[dict[str, int | float]] = []
    """their loss (``eval_loss``) after each epoch, and the step"""
    counters: EncodeCounters = EncodeCounters()
    attention: str | None = None
    """the one that ran, which is not always the one that was asked for; null if nothing was trained"""
    rope_factor: float | None = None
    """linear RoPE scaling that was put in, null for none"""
    timing: Timing


class PairCounters(BaseModel):
    """What happened to the pairs on their way to token ids."""

    pairs: int = 0
    identical: int = 0
    """of them, those whose sides are equal: they have no gradient (only ``sft_weight`` learns from them)"""
    dropped_long: int = 0
    """left out: prompt and longer response exceed ``max_length``"""
    dropped_empty: int = 0
    """left out: a side has nothing to score"""
    truncated_prompts: int = 0
    truncated_responses: int = 0
    """sides that lost their end, and so teach no end of turn"""
    cut_responses: int = 0
    """sides that ended at the generation limit, likewise"""


class PairTiming(Timing):
    """And how much of the opponent this call computed, rather than found in scratch."""

    opponent_seconds: float = 0.0
    opponent_scored: int = 0


class PairReport(BaseModel):
    """Counts are over the whole run, repetitions of a pair included."""

    steps: int
    pairs: int
    """pairs read"""
    tokens: int
    """positions computed, padding included"""
    real_tokens: int
    """tokens read, context included (and both sides)"""
    trained_tokens: int
    """tokens scored, both sides"""
    padding: float
    """share of ``tokens`` that is padding, 0 to 1"""
    held_out: int = 0
    """pairs that were only measured"""
    first: dict[str, float] = {}
    """the first step's metrics: loss ln 2 (hinge: 1) and rewards 0, or the run would have stopped"""
    curve: list[dict[str, int | float]] = []
    """``methods.spin.objective.METRICS`` by name, and the step: means of the steps since the last row"""
    evaluations: list[dict[str, int | float]] = []
    """the same of the pairs held out, after each epoch, names with the prefix ``eval_``"""
    counters: PairCounters = PairCounters()
    attention: str | None = None
    """the one that ran, which is not always the one that was asked for; null if nothing was trained"""
    rope_factor: float | None = None
    """linear RoPE scaling that was put in, null for none"""
    timing: PairTiming

    @property
    def loss(self) -> list[tuple[int, float]]:
        """(step, mean loss of the steps since the last entry)"""
        return [(int(row["step"]), row["loss"]) for row in self.curve]

    @classmethod
    def nothing(cls, counters: PairCounters) -> PairReport:
        """Of a run of no epochs."""
        timing = PairTiming(seconds=0.0, tokens_per_second=0.0)
        return cls(
            steps=0, pairs=0, tokens=0, real_tokens=0, trained_tokens=0, padding=0.0, counters=counters, timing=timing
        )
