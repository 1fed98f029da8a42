"""Refuses what this machine's memory could never hold, before anything is allocated."""

import psutil

from selfimprove.core.errors import UserError


def check_memory(size: int, what: str, *, total: int | None = None) -> None:
    """Compare a size in bytes with the memory of this machine, or with ``total`` bytes of a device.

    ``what`` begins the sentence and names the params that decide the size.

    Raises:
        UserError: it is more than all of it.
    """
    there = psutil.virtual_memory().total if total is None else total
    if size > there:
        raise UserError(f"{what} would take {size / 2**30:,.0f} GiB of memory, but only {there / 2**30:,.0f}.")
