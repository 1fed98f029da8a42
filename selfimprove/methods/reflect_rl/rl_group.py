"""The processes of one run of reinforcement learning, which hold the same weights and see the same episodes."""

import math
from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Group:
    """This process among the ``world`` processes started by ``fork``, or alone."""

    def __init__(self) -> None:
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    @property
    def first(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def gather(self, mine: T) -> list[T]:
        """The values of all processes, in order of rank."""
        if self.world == 1:
            return [mine]
        everybody: list[T | None] = [None] * self.world
        dist.all_gather_object(everybody, mine)
        return [one for one in everybody if one is not None]

    def total(self, mine: float) -> float:
        """The sum over all processes, rounded once."""
        return math.fsum(self.gather(mine))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their sums, added in order of rank, so that all processes and runs get the same bits."""
        if self.world == 1:
            return
        trainable = list(parameters)
        for parameter in trainable:  # a process may have had no work
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = torch.cat([parameter.grad.flatten() for parameter in trainable if parameter.grad is not None])
        shares = [torch.empty_like(gradients) for _ in range(self.world)]
        dist.all_gather(shares, gradients)
        gradients = sum(shares[1:], start=shares[0])
        at = 0
        for parameter in trainable:
            assert parameter.grad is not None
            parameter.grad.copy_(gradients[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
