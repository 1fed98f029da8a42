"""Sums over processes are computed in order of rank, so they are bitwise identical in every process and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.training.fork import run_forked
from selfimprove.training.gradients import mean_in_order

PROCESSES = 3


def numbers(rank: int, size: int) -> torch.Tensor:
    """Numbers of such different magnitudes that the order of addition affects the low-order bits."""
    generator = torch.Generator().manual_seed(1000 * rank + size)
    return torch.randn(size, generator=generator) * 10.0 ** (3 * rank)


def in_order(size: int) -> torch.Tensor:
    total = numbers(0, size)
    for rank in range(1, PROCESSES):
        total = total + numbers(rank, size)
    return total


def each_process(work: Any, folder: Path) -> Any:
    """The result of ``work(rank)`` in every process, collected by the group's own ``gather``."""

    def run(_: Any) -> Any:
        return Group().gather(work(Group().rank))

    return run_forked(run, processes=PROCESSES, threads=1, folder=folder)


def test_a_group_sums_numbers_and_gradients_and_may_have_a_single_process(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        group = Group()
        layer = torch.nn.Linear(2, 2)
        if rank:  # a process without work has no gradient
            layer.weight.grad = torch.full((2, 2), float(rank))
        group.sum_gradients(layer.parameters())
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        return group.total(0.1), layer.weight.grad.tolist(), layer.bias.grad.tolist()

    assert each_process(work, tmp_path) == [(0.30000000000000004, [[3.0, 3.0], [3.0, 3.0]], [0.0, 0.0])] * PROCESSES
    assert (Group().world, Group().total(0.1), Group().gather("x")) == (1, 0.1, ["x"])


def test_gradients_in_training_are_averaged_in_order_of_rank(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        mean = mean_in_order(numbers(rank, 1000)).wait()
        return bool(torch.equal(mean, in_order(1000) / PROCESSES))

    assert each_process(work, tmp_path) == [True] * PROCESSES
    backwards = sum((numbers(rank, 1000) for rank in (1, 0)), start=numbers(2, 1000))
    assert not torch.equal(in_order(1000), backwards)  # otherwise the assertion above could not detect another order
