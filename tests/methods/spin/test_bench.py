"""The benchmark of SPIN's episodes: every mode generates tokens, and every share is between 0 and 1."""

from __future__ import annotations

import json

import pytest

from bench import questions
from bench.questions import measure, show
from selfimprove.methods.spin.params import GenerateParams


def test_concurrent_questions_are_compared_with_one_at_a_time_and_the_raw_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "CFG", GenerateParams(max_turns=2, retries=0, max_tokens=8))
    result = measure(questions=6, experts=40, single_questions=2, slots=4, rounds=1, threads=1, epochs=0.5)
    rates = result["tokens_per_second"]
    assert set(rates) == {"play", "one at a time", "library one at a time", "engine"}
    assert min(rates.values()) > 0
    assert set(result["questions_per_second"]) == set(rates) - {"engine"}
    assert 0 < result["occupancy"] <= 1
    assert 0 <= result["finished"] <= 1
    assert abs(result["of_engine"] - rates["play"] / rates["engine"]) < 1e-2
    assert json.loads(json.dumps(result)) == result
    show(result)
