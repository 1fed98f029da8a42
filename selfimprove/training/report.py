"""The report of a fine-tuning run. All values except ``timing`` are reproducible."""

from __future__ import annotations

from pydantic import BaseModel

from selfimprove.training.encode import EncodeCounters


class Timing(BaseModel):
    """Duration of this call. An earlier call had completed ``resumed_at`` steps."""

    seconds: float = 0.0
    tokens_per_second: float = 0.0
    resumed_at: int = 0


class RunReport(BaseModel):
    """Results of any fine-tuning run. Counts are over the whole run, including repetitions of examples or pairs.

    The defaults are the results of a run that trained nothing.
    """

    steps: int = 0
    tokens: int = 0
    """positions computed, padding included"""
    real_tokens: int = 0
    """tokens read, context included"""
    trained_tokens: int = 0
    """tokens with weight; for pairs, the scored tokens of both sides"""
    padding: float = 0.0
    """share of ``tokens`` that is padding, 0 to 1"""
    held_out: int = 0
    """examples or pairs used only for validation"""
    evaluations: list[dict[str, int | float]] = []
    """validation metrics after each epoch, with names prefixed ``eval_``, and the step"""
    attention: str | None = None
    """the attention that ran, which may differ from the configured one; null if nothing was trained"""
    rope_factor: float | None = None
    """linear RoPE scaling factor, null if there is none"""


class TrainReport(RunReport):
    """Report of weighted SFT."""

    examples: int = 0
    """examples read"""
    mean_weight: float = 0.0
    """mean factor by which weights scale a step, after normalization"""
    raw_mean_weight: float = 0.0
    """mean weight of the examples before normalization"""
    loss: list[tuple[int, float]] = []
    """(step, mean loss since the previous entry)"""
    counters: EncodeCounters = EncodeCounters()
    timing: Timing = Timing()


class PairCounters(BaseModel):
    """Counts of pairs, truncated and dropped ones."""

    pairs: int = 0
    identical: int = 0
    """pairs whose sides are equal: they have no gradient (except through ``sft_weight``)"""
    dropped_long: int = 0
    """dropped: prompt and longer response exceed ``max_length``"""
    dropped_empty: int = 0
    """dropped: a side has no scored token"""
    truncated_prompts: int = 0
    truncated_responses: int = 0
    """sides that lost their end, and with it the end-of-turn token"""
    cut_responses: int = 0
    """sides that ended at the generation limit and so have no end-of-turn token"""


class PairTiming(Timing):
    """Timing that includes the opponent's scores computed by this call, not those found in scratch."""

    opponent_seconds: float = 0.0
    opponent_scored: int = 0


class PairReport(RunReport):
    """Report of training on pairs."""

    pairs: int = 0
    """pairs read"""
    first: dict[str, float] = {}
    """the first step's metrics: loss ln 2 (hinge: 1) and rewards 0, which ``check_first`` enforces"""
    curve: list[dict[str, int | float]] = []
    """the step, and ``methods.spin.objective.METRICS`` by name: means over the steps since the previous row"""
    counters: PairCounters = PairCounters()
    timing: PairTiming = PairTiming()

    @property
    def loss(self) -> list[tuple[int, float]]:
        """(step, mean loss since the previous entry)"""
        return [(int(row["step"]), row["loss"]) for row in self.curve]
