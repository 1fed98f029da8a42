"""The processes of one run of reinforcement learning: each holds the same weights and sees the same episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Group:
    """This process among ``world`` of them; alone where no group was joined."""

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.world = dist.get_world_size() if joined else 1

    @property
    def first(self) -> bool:
        """Whether this one writes files and logs."""
        return self.rank == 0

    def gather(self, mine: T) -> list[T]:
        """Everybody's, in order of rank."""
        if self.world == 1:
            return [mine]
        everybody: list[T | None] = [None] * self.world
        dist.all_gather_object(everybody, mine)
        return [one for one in everybody if one is not None]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their sums, added in order of rank: the same bits in every process and every run."""
        if self.world == 1:
            return
        learnt = list(parameters)
        for parameter in learnt:  # a process may have had no work
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        mine = torch.cat([parameter.grad.flatten() for parameter in learnt if parameter.grad is not None])
        shares = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(shares, mine)
        total = shares[0]
        for share in shares[1:]:
            total += share
        at = 0
        for parameter in learnt:
            assert parameter.grad is not None
            parameter.grad.copy_(total[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
