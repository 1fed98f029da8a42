"""The training benchmarks compare equal work, and our padding is at most 5 %."""

from __future__ import annotations

import json

import pytest

from bench import pairs
from bench.training import measure, show

pytestmark = pytest.mark.slow


def test_both_trainers_do_the_same_work_and_ours_pads_at_most_five_percent() -> None:
    result = measure(examples=64, repeats=1)
    assert result["valid"]
    assert 0 <= result["padding"]["packed"] <= 0.05 < result["padding"]["padded"]
    assert min(result["tokens_per_second"].values()) > 0
    assert json.loads(json.dumps(result)) == result
    show(result)


def test_self_play_does_the_same_work_with_precomputed_and_with_published_scoring() -> None:
    result = pairs.measure(pairs=24, repeats=1, batch_size=8)
    assert result["valid"]
    assert result["padding"]["precomputed"] == 0 < result["padding"]["published"] < 1
    assert min(result["tokens_per_second"].values()) > 0
    assert json.loads(json.dumps(result)) == result
    pairs.show(result)
