"""The plan: every example once per epoch, nothing cut, little padding, equal work per process, exact token counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.seeds import rng
from selfimprove.training.packing import PackingPlan, computed_tokens, make_plan

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=80)
LAYOUT = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 40),
        "row_tokens": st.integers(1, 600),
        "micro_batch_tokens": st.integers(1, 3000),
        "world_size": st.integers(1, 4),
        "seed": st.integers(0, 5),
        "group_by_length": st.booleans(),
    }
)


def drawn(plan: PackingPlan) -> list[int]:
    return [index for step in plan.steps for index in step.examples]


@given(LENGTHS, LAYOUT, st.sampled_from([0.0, 0.3, 1.0, 2.0, 2.5]))
def test_every_example_occurs_once_per_epoch(lengths: list[int], layout: dict[str, Any], epochs: float) -> None:
    plan = make_plan(lengths, epochs=epochs, **layout)
    order = drawn(plan)
    assert len(order) == plan.examples == round(epochs * len(lengths))
    for start in range(0, len(order), len(lengths)):
        epoch = order[start : start + len(lengths)]
        assert len(set(epoch)) == len(epoch)
    assert all(len(step.examples) == layout["batch_size"] for step in plan.steps[:-1])
    assert plan.real_tokens == sum(lengths[i] for i in order)


@given(LENGTHS, LAYOUT)
def test_rows_laid_end_to_end_contain_every_example_and_no_padding(lengths: list[int], layout: dict[str, Any]) -> None:
    plan = make_plan(lengths, filled=False, **layout)
    assert plan.examples == len(lengths)
    empty = sum(not micro for step in plan.steps for share in step.shares for micro in share)
    assert plan.padded_tokens == plan.real_tokens + empty  # a process without work computes one token
    for step in plan.steps:
        assert len({len(share) for share in step.shares}) == 1
        for share in step.shares:
            for micro in share:
                assert len(micro) <= 1 or computed_tokens(micro, lengths, False) <= layout["micro_batch_tokens"]


@given(LENGTHS, LAYOUT, st.sampled_from([1.0, 2.5]))
def test_with_whole_epochs_no_step_crosses_an_epoch_boundary(
    lengths: list[int], layout: dict[str, Any], epochs: float
) -> None:
    plan = make_plan(lengths, epochs=epochs, whole_epochs=True, **layout)
    n, size = len(lengths), layout["batch_size"]
    full = int(epochs)
    sizes = [len(step.examples) for step in plan.steps]
    an_epoch = [size] * (n // size) + ([n % size] if n % size else [])
    assert sizes[: full * len(an_epoch)] == an_epoch * full
    assert sum(sizes) == round(epochs * n)


@given(LENGTHS, LAYOUT)
def test_rows_contain_a_step_s_examples_uncut_and_respect_the_limits(
    lengths: list[int], layout: dict[str, Any]
) -> None:
    plan = make_plan(lengths, **layout)
    padded = 0
    for step in plan.steps:
        micros = [micro for share in step.shares for micro in share]
        laid = [index for micro in micros for row in micro for index in row]
        assert Counter(laid) == Counter(step.examples)
        longest = max(lengths[i] for i in step.examples)
        for micro in micros:
            widths = [sum(lengths[i] for i in row) for row in micro]
            assert all(width <= max(layout["row_tokens"], longest) for width in widths)
            assert len(micro) <= 1 or len(micro) * max(widths) <= layout["micro_batch_tokens"]
        for share in step.shares:
            computed = [computed_tokens(micro, lengths) for micro in share]
            padded += sum(computed)
            held = sum(lengths[i] for micro in share for row in micro for i in row)
            assert held >= 0.96 * (sum(computed) - share.count(()))
    assert padded == plan.padded_tokens


@given(LENGTHS, LAYOUT, st.booleans())
def test_with_row_tokens_1_no_example_shares_a_row(lengths: list[int], layout: dict[str, Any], filled: bool) -> None:
    for step in make_plan(lengths, **{**layout, "row_tokens": 1}, filled=filled).steps:
        assert all(len(row) == 1 for share in step.shares for micro in share for row in micro)


@given(LENGTHS, LAYOUT)
def test_all_processes_get_the_same_number_of_micro_batches(lengths: list[int], layout: dict[str, Any]) -> None:
    for step in make_plan(lengths, **layout).steps:
        assert len(step.shares) == layout["world_size"]
        assert len({len(share) for share in step.shares}) == 1
        if len(step.examples) >= layout["world_size"]:
            assert sum(bool(share[0]) for share in step.shares) == layout["world_size"]


def test_processes_compute_nearly_the_same_number_of_tokens() -> None:
    random = rng("lengths", "shares")
    lengths = [random.randint(60, 140) for _ in range(1600)]
    for world_size in (2, 4):
        plan = make_plan(lengths, batch_size=16, row_tokens=192, micro_batch_tokens=8192, seed=0, world_size=world_size)
        slowest = sum(
            max(sum(computed_tokens(micro, lengths) for micro in share) for share in step.shares) for step in plan.steps
        )
        assert slowest <= 1.05 * plan.padded_tokens / world_size


@given(LENGTHS, LAYOUT, st.integers(1, 20_000))
def test_training_ends_with_the_step_that_reaches_max_tokens(
    lengths: list[int], layout: dict[str, Any], limit: int
) -> None:
    plan = make_plan(lengths, max_tokens=limit, **layout)
    last = sum(lengths[i] for i in plan.steps[-1].examples)
    assert plan.real_tokens >= limit > plan.real_tokens - last
    counts = Counter(drawn(plan))
    assert max(counts.values()) - min(counts.get(i, 0) for i in range(len(lengths))) <= 1


@given(LENGTHS, LAYOUT)
def test_layout_and_number_of_processes_do_not_change_a_step_s_examples(
    lengths: list[int], layout: dict[str, Any]
) -> None:
    plan = make_plan(lengths, epochs=2, **layout)
    plain: dict[str, Any] = {**layout, "row_tokens": 1, "micro_batch_tokens": 1, "world_size": 1}
    assert [s.examples for s in plan.steps] == [s.examples for s in make_plan(lengths, epochs=2, **plain).steps]


@pytest.mark.parametrize(
    ("low", "high", "row_tokens"), [(60, 180, 384), (60, 180, 1024), (30, 300, 1024), (100, 900, 2048)]
)
def test_padding_is_at_most_five_percent(low: int, high: int, row_tokens: int) -> None:
    random = rng("lengths", low, high)
    lengths = [random.randint(low, high) for _ in range(2000)]
    for batch_size in (16, 64):
        plan = make_plan(lengths, batch_size=batch_size, row_tokens=row_tokens, micro_batch_tokens=8192, seed=0)
        assert 0 < plan.padding <= 0.05


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    shape: dict[str, Any] = {"batch_size": 50, "row_tokens": 50, "micro_batch_tokens": 500, "epochs": 2}
    two, other = (make_plan([5] * 50, seed=seed, **shape) for seed in (0, 1))
    first, second = (step.examples for step in two.steps)
    assert len({first, second, other.steps[0].examples, tuple(range(50))}) == 4


def test_grouping_by_length_needs_fewer_micro_batches_and_shuffles_the_steps() -> None:
    lengths = [rng("lengths", i).choice([40, 60, 80, 130, 180]) for i in range(2000)]
    settings: dict[str, Any] = {
        "batch_size": 16,
        "row_tokens": 1,
        "micro_batch_tokens": 10**6,
        "seed": 3,
        "epochs": 2.0,
    }
    grouped = make_plan(lengths, group_by_length=True, **settings)
    mixed = make_plan(lengths, group_by_length=False, **settings)
    spread = [max(lengths[i] for i in step.examples) - min(lengths[i] for i in step.examples) for step in grouped.steps]
    assert sum(spread) / len(spread) < 20
    micros = [len(plan_steps.shares[0]) for plan_steps in grouped.steps]
    assert sum(micros) < sum(len(step.shares[0]) for step in mixed.steps)
    firsts = [lengths[step.examples[0]] for step in grouped.steps]
    assert firsts != sorted(firsts)
    assert drawn(grouped)[:2000] != drawn(grouped)[2000:]


@pytest.mark.parametrize("batch_size", [8, 16, 2000])
def test_grouping_by_length_holds_in_every_epoch_whatever_the_number_of_examples(batch_size: int) -> None:
    lengths = [1 + rng("lengths", i).randrange(800) for i in range(1001)]
    plan = make_plan(
        lengths, batch_size=batch_size, row_tokens=1, micro_batch_tokens=10**6, seed=3, epochs=3, group_by_length=True
    )
    for epoch in range(3):
        assert sorted(drawn(plan)[1001 * epoch : 1001 * (epoch + 1)]) == list(range(1001))
    wide = [
        step
        for step in plan.steps
        if max(lengths[i] for i in step.examples) - min(lengths[i] for i in step.examples) > 100
    ]
    assert len(wide) <= 3, "at most the steps that cross an epoch's boundary, and the last"
