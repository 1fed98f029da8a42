"""What the benchmarks that play share: what a way took, and the table of rates, in each one's unit and in tokens."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfimprove.engines.base import Request


@dataclass(frozen=True)
class Run:
    """One timing of a way: seconds, tokens drawn, and shares of prompt tokens copied and of slots that were busy."""

    seconds: float
    tokens: int
    reused: float
    occupancy: float


def timed(engine: Any, work: Coroutine[Any, Any, Any]) -> tuple[Any, Run]:
    """Do it, from a cold prefix cache: the result, and what the engine counted meanwhile."""
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
    """Other work on the machine only slows down, so a way's fastest run counts."""
    if name not in best or run.tokens / run.seconds > best[name].tokens / best[name].seconds:
        best[name] = run


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; its first column holds names, the others numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_rates(title: str, unit: str, counts: Mapping[str, float], tokens: Mapping[str, float]) -> None:
    """Print a row a way of ``tokens`` (tokens/s); ``counts`` has its rate in ``unit``/s, where it has one."""
    rows = [(name, f"{counts[name]:,.1f}" if name in counts else "", f"{rate:,.0f}") for name, rate in tokens.items()]
    print_table(title, ("way", f"{unit}/s", "tokens/s"), rows)
