"""The mean of several processes' gradients, in an order that does not depend on how DDP groups them."""

from typing import Any

import torch


def mean_in_order(mine: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The mean of the processes' gradients, summed in order of rank.

    A ring of three or more processes sums in an order that depends on a gradient's position in its bucket, and DDP
    rebuilds buckets after the first step. A resumed run would therefore differ in the low-order bits.
    """
    shares = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    work = torch.distributed.all_gather(shares, mine, async_op=True)

    def mean(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.wait()
        return sum(shares[1:], start=shares[0]).div_(len(shares))

    return work.get_future().then(mean)
