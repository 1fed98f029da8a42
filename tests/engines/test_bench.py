"""The rollout benchmark runs every variant, and its occupancy is a share of all slots."""

from __future__ import annotations

import json

import pytest

from bench.rollouts import NOISE, measure, show

pytestmark = pytest.mark.slow


def test_rollouts_are_compared_with_the_raw_engine_and_all_other_variants() -> None:
    result = measure(episodes=12, slots=4, batches=(4,), rounds=1)
    assert 0 < result["occupancy"] <= 1
    assert 0 < result["occupancy_until_tail"] <= 1
    rates = result["tokens_per_second"]
    assert {"rollout", "raw 4", "one at a time", "limit 4", "lockstep 4", "generate 4"} <= set(rates)
    assert min(rates.values()) > 0
    ratio = rates["rollout"] / rates["raw"]
    assert abs(result["of_raw_engine"] - ratio) < 1e-3 * ratio
    assert result["valid"] == (result["of_limit"] <= 1 and result["of_raw_engine"] <= 1 + NOISE)
    assert json.loads(json.dumps(result)) == result
    show(result)
