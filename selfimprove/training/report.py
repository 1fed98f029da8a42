"""The report of a fine-tuning run. Everything but ``timing`` is the same on every run."""

from __future__ import annotations

from pydantic import BaseModel

from selfimprove.training.encode import EncodeCounters


class Timing(BaseModel):
    """How long this call took; ``resumed_at`` steps had been done by an earlier one."""

    seconds: float
    tokens_per_second: float
    resumed_at: int = 0


class RunReport(BaseModel):
    """Reported by every fine-tuning. Counts are over the whole run, repetitions of an example or pair included."""

    steps: int
    tokens: int
    """positions computed, padding included"""
    real_tokens: int
    """tokens read, context included"""
    trained_tokens: int
    """tokens with weight; of pairs those that are scored, both sides"""
    padding: float
    """share of ``tokens`` that is padding, 0 to 1"""
    held_out: int = 0
    """examples, or pairs, that were only measured"""
    evaluations: list[dict[str, int | float]] = []
    """their metrics, names with the prefix ``eval_``, after each epoch, and the step"""
    attention: str | None = None
    """the one that ran, which is not always the one that was asked for; null if nothing was trained"""
    rope_factor: float | None = None
    """linear RoPE scaling that was put in, null for none"""


class TrainReport(RunReport):
    """Weighted SFT."""

    examples: int
    """examples read"""
    mean_weight: float
    """factor by which weighting stretches the mean step, after normalization"""
    raw_mean_weight: float
    """mean weight of the examples as they were given"""
    loss: list[tuple[int, float]]
    """(step, mean loss of the steps since the last entry)"""
    counters: EncodeCounters = EncodeCounters()
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
    """sides that lost their end, and with it the end-of-turn token"""
    cut_responses: int = 0
    """sides that ended at the generation limit, likewise"""


class PairTiming(Timing):
    """And how much of the opponent this call computed, rather than found in scratch."""

    opponent_seconds: float = 0.0
    opponent_scored: int = 0


class PairReport(RunReport):
    """Training on pairs."""

    pairs: int
    """pairs read"""
    first: dict[str, float] = {}
    """the first step's metrics: loss ln 2 (hinge: 1) and rewards 0, or the run would have stopped"""
    curve: list[dict[str, int | float]] = []
    """``methods.spin.objective.METRICS`` by name, and the step: means of the steps since the last row"""
    counters: PairCounters = PairCounters()
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
