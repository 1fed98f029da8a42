"""The optimisers of training on pairs (docs/spin.md, S37)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.spin.test_pair_trainer import Maker, params, run, weights


def test_the_first_step_of_rmsprop_is_ten_times_the_learning_rate_and_adamws_is_once(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    """RMSProp's average of squares starts at 0.01 g²; Adam corrects that bias."""
    cfg = {"epochs": 1, "batch_size": 8, "lr": 1e-5, "schedule": "constant", "warmup_ratio": 0.0}
    for optimizer, size in (("rmsprop", 1e-4), ("adamw", 1e-5)):
        run(tiny, duels(8), tmp_path / optimizer, params(optimizer=optimizer, **cfg))
        before, after = weights(tiny), weights(tmp_path / optimizer / "model")
        moved = max(float((after[name] - before[name]).abs().max()) for name in before)
        assert moved == pytest.approx(size, rel=0.02)
