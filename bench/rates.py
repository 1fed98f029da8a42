"""Timing and tables shared by the benchmarks that play episodes: rates in each benchmark's unit and in tokens."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfimprove.engines.base import Request


@dataclass(frozen=True)
class Run:
    """One timing: seconds, tokens drawn, share of prompt tokens copied from the cache, and share of busy slots."""

    seconds: float
    tokens: int
    reused: float
    occupancy: float


def timed(engine: Any, work: Coroutine[Any, Any, Any]) -> tuple[Any, Run]:
    """Await ``work`` with a cold prefix cache; returns its result and what the engine counted in the meantime."""
    engine.forget_prefixes()
    before, began = replace(engine.stats), time.perf_counter()
    result = asyncio.run(work)
    seconds, after = time.perf_counter() - began, engine.stats

    def counted(name: str) -> int:
        return getattr(after, name) - getattr(before, name)

    return result, Run(
        seconds=seconds,
        tokens=counted("generated_tokens"),
        reused=counted("cached_prompt_tokens") / max(1, counted("prompt_tokens")),
        occupancy=counted("busy_slot_steps") / max(1, counted("slot_steps")),
    )


async def answer_all(engine: Any, requests: Iterable[Request]) -> None:
    await asyncio.gather(*(engine.generate(request) for request in requests))


def keep_best(best: dict[str, Run], name: str, run: Run) -> None:
    """Keep the faster run: other work on the machine can only slow a run down."""
    if name not in best or run.tokens / run.seconds > best[name].tokens / best[name].seconds:
        best[name] = run


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column contains names and whose other columns contain numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_rates(title: str, unit: str, counts: Mapping[str, float], tokens: Mapping[str, float]) -> None:
    """Print one row per entry of ``tokens`` (tokens/s), with its rate in ``unit``/s if ``counts`` has one."""
    rows = [(name, f"{counts[name]:,.1f}" if name in counts else "", f"{rate:,.0f}") for name, rate in tokens.items()]
    print_table(title, ("way", f"{unit}/s", "tokens/s"), rows)
