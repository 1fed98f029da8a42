"""Chooses the number of rows in a pass: the meaning of ``slots: auto`` and ``prefill_rows: auto``.

A small model's pass costs hardly more for many rows than for few, so many rows pay off. A large model's cost grows with
its rows: with a hundred million parameters, a quarter of the rows already comes near the full rate (docs/engines.md),
and passes that cannot be filled, or that are tested when the engine starts, cost a quarter.
"""

from contextlib import suppress
from math import ceil, log10, prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from selfimprove.engines.config import TransformersEngineConfig

SLOTS = 128
"""Rows decoded concurrently with a small model."""

PREFILL_TOKENS = 512
"""Prompt tokens per prefill pass of a small model."""

GPU_PREFILL_TOKENS = 2048
"""Prompt tokens per prefill pass on a GPU, at most half as many prompts as slots."""

SMALL = 10_000_000
"""Maximum parameters of a small model. Above it, each factor of ten halves the rows."""


def halvings(parameters: int) -> int:
    """How many times the size of a pass is halved for a model with this many parameters."""
    return ceil(log10(max(parameters, SMALL) / SMALL))


def batch_sizes(cfg: TransformersEngineConfig, parameters: int) -> tuple[int, int]:
    """(Total slots of all replicas, prefill rows of each) for a model with this many parameters."""
    on_cpu = cfg.device == "cpu"
    shift = halvings(parameters) if on_cpu else 0
    slots = max(cfg.replicas, SLOTS >> shift) if cfg.slots == "auto" else cfg.slots
    if cfg.prefill_rows != "auto":
        return slots, cfg.prefill_rows
    rows = (PREFILL_TOKENS >> shift) // cfg.prefill_block
    if not on_cpu:
        rows = min(GPU_PREFILL_TOKENS // cfg.prefill_block, slots // 2)
    return slots, max(1, rows)


def stored_parameters(folder: Path) -> int:
    """The number of values in a model's safetensors files; only their headers are read.

    Invalid files count as empty: loading the model reports what is wrong with them.
    """
    total = 0
    for file in folder.glob("*.safetensors"):
        with suppress(SafetensorError), safe_open(file, "np") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                total += prod(weights.get_slice(name).get_shape())
    return total
