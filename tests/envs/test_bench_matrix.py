"""The matrix benchmark runs every cell that is possible here, and no other."""

from __future__ import annotations

import json

from bench.matrix import measure, show
from selfimprove.envs.matrix import TITLES, cells
from tests.support.worlds import HERE


def test_exactly_the_possible_cells_have_a_rate() -> None:
    result = measure(threads=1, episodes=3, rounds=1)
    rates, possible = result["episodes_per_second"], cells()
    assert {(method, name): rates[method][name] is not None for method in rates for name in rates[method]} == {
        (method, name): possible[method, name].possible for method in TITLES for name in HERE
    }
    assert all(rate > 0 for of_method in rates.values() for rate in of_method.values() if rate is not None)
    assert json.loads(json.dumps(result)) == result
    show(result)
