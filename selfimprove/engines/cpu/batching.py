"""How many rows a pass through a model has: what ``slots: auto`` and ``prefill_rows: auto`` mean.

A small model's pass costs hardly more for many rows than for few; it pays to have many. A large model's cost grows with
its rows: with a hundred million parameters, a quarter as many rows already come near the rate of all (docs/engines.md),
and the passes that cannot be filled, or that are tried when the engine starts, cost a quarter.
"""

from contextlib import suppress
from math import ceil, log10
from pathlib import Path

from safetensors import SafetensorError, safe_open

from selfimprove.engines.config import TransformersEngineConfig

SLOTS = 128
"""Rows that a small model decodes at once."""

PREFILL_TOKENS = 512
"""Prompt tokens that a small model prefills in a pass."""

SMALL = 10_000_000
"""Parameters of a small model. Beyond, each tenfold halves the rows."""


def halvings(parameters: int) -> int:
    """How often a pass is halved for a model of so many parameters."""
    return ceil(log10(max(parameters, SMALL) / SMALL))


def batch_sizes(cfg: TransformersEngineConfig, parameters: int) -> tuple[int, int]:
    """The slots of all replicas, and the prefill rows of each, over a model of so many parameters."""
    shift = halvings(parameters) if cfg.device == "cpu" else 0
    slots = max(cfg.replicas, SLOTS >> shift) if cfg.slots == "auto" else cfg.slots
    rows = max(1, (PREFILL_TOKENS >> shift) // cfg.prefill_block) if cfg.prefill_rows == "auto" else cfg.prefill_rows
    return slots, rows


def stored_parameters(folder: Path) -> int:
    """How many numbers the safetensors files of a model hold; only their headers are read.

    A file that is none counts nothing: loading the model says what is wrong with it.
    """
    total = 0
    for file in folder.glob("*.safetensors"):
        with suppress(SafetensorError), safe_open(file, "np") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                size = 1
                for length in weights.get_slice(name).get_shape():
                    size *= length
                total += size
    return total
