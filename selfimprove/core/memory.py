"""Rejects sizes that exceed this machine's memory before anything is allocated."""

import psutil

from selfimprove.core.errors import UserError


def check_memory(size: int, what: str, *, total: int | None = None) -> None:
    """Compare a size in bytes with the total memory of this machine, or with ``total`` bytes of a device.

    ``what`` starts the error message and names the params that determine the size.

    Raises:
        UserError: ``size`` exceeds the total.
    """
    there = psutil.virtual_memory().total if total is None else total
    if size > there:
        raise UserError(f"{what} would take {size / 2**30:,.0f} GiB of memory, but only {there / 2**30:,.0f}.")
