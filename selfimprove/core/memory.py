"""Memory that does not suffice: sizes are rejected before anything is allocated, a GPU's refusals are one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from selfimprove.core.errors import UserError

REFUSALS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Words in the RuntimeErrors of torch (``torch.OutOfMemoryError``), CUDA and cuBLAS for exhausted memory of a GPU."""


def check_memory(size: int, what: str, *, total: int | None = None) -> None:
    """Compare a size in bytes with the total memory of this machine, or with ``total`` bytes of a device.

    ``what`` starts the error message and names the params that determine the size.

    Raises:
        UserError: ``size`` exceeds the total.
    """
    there = psutil.virtual_memory().total if total is None else total
    if size > there:
        raise UserError(f"{what} would take {size / 2**30:,.0f} GiB of memory, but only {there / 2**30:,.0f}.")


@contextmanager
def gpu_memory(place: str, remedy: str) -> Iterator[None]:
    """Report a GPU's exhausted memory within the context in one sentence.

    Args:
        place: starts the message: a section of the params, or an engine.
        remedy: names the params that determine how much memory is needed.

    Raises:
        UserError: torch or CUDA refused an allocation.
    """
    try:
        yield
    except RuntimeError as error:  # not by its class: torch is imported only by those who compute
        if not any(words in str(error) for words in REFUSALS):
            raise
        tried = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
        more = f" ({tried[1]} more were needed)" if tried else ""
        raise UserError(f"{place}: the GPU's memory is exhausted{more}; {remedy}.") from None
