"""Sums through shared memory: exact, in order of rank, however large and however unevenly the processes come."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.training import shared_sum
from selfimprove.training.fork import run_forked
from selfimprove.training.loop import _mean_in_order
from selfimprove.training.shared_sum import PIECE_BYTES, SharedSum

PROCESSES = 3
ONE_PIECE = PIECE_BYTES // 4
SIZES = (1, 7, ONE_PIECE, ONE_PIECE + 1, 2 * ONE_PIECE + 5)


def numbers(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of sizes so unlike that the order of adding shows in the last bits."""
    generator = torch.Generator().manual_seed(1000 * rank + size)
    return (torch.randn(size, generator=generator) * 10.0 ** (3 * rank)).to(dtype)


def in_order(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    total = numbers(0, size, dtype)
    for rank in range(1, PROCESSES):
        total = total + numbers(rank, size, dtype)
    return total


def each_process(work: Any, folder: Path) -> Any:
    """``work(rank)`` of every process, by the group's own gathering."""

    def run(_: Any) -> Any:
        return Group().gather(work(Group().rank))

    return run_forked(run, processes=PROCESSES, threads=1, folder=folder)


def test_sums_have_the_same_bits_everywhere_whatever_their_size_and_type(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        sums = shared_sum.current()
        assert sums is not None
        kinds = [(size, dtype) for size in SIZES for dtype in (torch.float32, torch.float64, torch.bfloat16)]
        mine = [numbers(rank, *kind) for kind in kinds]
        for tensor in mine:
            sums.add_up(tensor)
        return [bool(torch.equal(tensor, in_order(*kind))) for tensor, kind in zip(mine, kinds, strict=True)]

    assert each_process(work, tmp_path) == [[True] * 3 * len(SIZES)] * PROCESSES
    backwards = sum((numbers(rank, 7) for rank in (1, 0)), start=numbers(2, 7))
    assert not torch.equal(in_order(7), backwards)  # or nothing above showed the order


def test_nobody_overtakes_a_sum_that_another_still_reads(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        sums, wait = shared_sum.current(), random.Random(rank)
        assert sums is not None
        wrong = 0
        for number in range(300):
            if wait.random() < 0.1:
                time.sleep(wait.random() / 200)
            mine = torch.full((64,), float(number * PROCESSES + rank))
            sums.add_up(mine)
            wrong += int((mine != float(sum(number * PROCESSES + each for each in range(PROCESSES)))).sum())
        return wrong

    assert each_process(work, tmp_path) == [0] * PROCESSES


def test_a_group_adds_up_numbers_and_gradients_and_one_process_is_a_group_too(tmp_path: Path) -> None:
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
    assert shared_sum.current() is None
    assert (Group().world, Group().total(0.1), Group().gather("x")) == (1, 0.1, ["x"])


def test_without_shared_memory_three_processes_add_up_in_the_same_order(tmp_path: Path) -> None:
    """What torchrun's processes do (``loop._mean_in_order``), with gloo."""

    def work(rank: int) -> Any:
        mean = _mean_in_order(numbers(rank, 1000)).wait()
        return bool(torch.equal(mean, in_order(1000) / PROCESSES))

    assert each_process(work, tmp_path) == [True] * PROCESSES


def test_who_waits_for_a_process_that_has_failed_is_ended(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        sums = shared_sum.current()
        assert sums is not None
        if Group().rank == 1:
            raise UserError("data/x.jsonl:3 is torn; fix it.")
        sums.add_up(torch.zeros(3))

    with pytest.raises(UserError, match="is torn"):
        run_forked(work, processes=PROCESSES, threads=1, folder=tmp_path)


def test_one_process_sums_alone() -> None:
    mine = torch.arange(5.0)
    SharedSum(1).add_up(mine)
    assert mine.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
