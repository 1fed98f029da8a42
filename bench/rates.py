"""The table of the benchmarks that play: each way's rate in its own unit and in tokens."""

from __future__ import annotations

from collections.abc import Mapping


def print_rates(title: str, unit: str, counts: Mapping[str, float], tokens: Mapping[str, float]) -> None:
    """Print a row a way of ``tokens`` (tokens/s); ``counts`` has its rate in ``unit``/s, where it has one."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in ("way", f"{unit}/s", "tokens/s"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for name, rate in tokens.items():
        table.add_row(name, f"{counts[name]:,.1f}" if name in counts else "", f"{rate:,.0f}")
    Console().print(table)
