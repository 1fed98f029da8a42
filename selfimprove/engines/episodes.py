"""Plays many episodes concurrently: a method defines one episode, and the engine batches the waiting requests."""

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
        """Its id."""

    @property
    def status(self) -> str:
        """``blocked``: the engine or environment failed permanently."""

    @property
    def error(self) -> str | None:
        """The cause of the failure."""


async def play_all(
    tasks: Sequence[T], play: Callable[[T], Awaitable[E]], *, concurrency: int, progress: StageProgress | None = None
) -> Sequence[E]:
    """Run ``play`` for every task, at most ``concurrency`` at a time; returns results in the order of ``tasks``
    (stored in a file if there are very many: see ``Results``).

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
    """Print one sentence on standard error if replayed episodes differed from their first run."""
    if diverged:
        print(
            f"{stage}: {diverged} replays diverged from the first time, so trees and scores mix different worlds; "
            "check whether the environment's server was restarted with other data, or is not deterministic.",
            file=sys.stderr,
        )
