"""Plays many episodes at once: a method writes one, the engine batches whatever is waiting."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from selfimprove.engines.progress import StageProgress
from selfimprove.engines.results import Results

T = TypeVar("T")
E = TypeVar("E")


class EpisodeResult(Protocol):
    """An episode or a tree."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def status(self) -> str:
        """``blocked``: engine or environment failed it for good."""

    @property
    def error(self) -> str | None:
        """What failed."""


async def play_all(
    tasks: Sequence[T], play: Callable[[T], Awaitable[E]], *, concurrency: int, progress: StageProgress | None = None
) -> Sequence[E]:
    """Run ``play`` for every task, at most ``concurrency`` at a time; results in the order of ``tasks``
    (of very many, in a file: see ``Results``).

    The first exception ends the run: the other episodes are cancelled, and what they had finished stays in the
    engines' journals.
    """
    results: Results[E] = Results(len(tasks))
    waiting = iter(range(len(tasks)))

    async def worker() -> None:
        for index in waiting:
            results.put(index, await play(tasks[index]))
            if progress:
                progress.advance()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(tasks))):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return results


def say_diverged(stage: str, diverged: int) -> None:
    """One sentence on standard error if replayed episodes saw something else than the first time; else nothing."""
    if diverged:
        print(
            f"{stage}: {diverged} replays diverged from the first time, so trees and scores mix different worlds; "
            "check whether the environment's server was restarted with other data, or is not deterministic.",
            file=sys.stderr,
        )
