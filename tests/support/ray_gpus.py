"""Code that runs in Ray's actors and reports which of the cluster's GPUs (which need not exist) each actor has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfimprove.engines.base import Engine

LOADING_SECONDS = 1.0


def gpu_of(actor: Any) -> int:
    """The only GPU of the actor that runs this."""
    import ray

    (gpu,) = ray.get_gpu_ids()
    return int(gpu)


@dataclass(frozen=True)
class OnlyFirst:
    """Creates an engine in the first actor that asks, and fails in every other one after that."""

    make: Callable[[], Engine]
    folder: Path

    def __call__(self) -> Engine:
        made = self.folder / "made"
        try:
            self.folder.joinpath("taken").touch(exist_ok=False)
        except FileExistsError:
            while not made.exists():
                time.sleep(0.1)
            time.sleep(LOADING_SECONDS)
            raise RuntimeError("no memory") from None
        engine = self.make()
        made.touch()
        return engine


@dataclass(frozen=True)
class SlowToLoad:
    """Creates an engine slowly, and logs when this begins and ends to a file named after the actor's GPU."""

    make: Callable[[], Engine]
    folder: Path

    def __call__(self) -> Engine:
        log = self.folder / f"{gpu_of(None)}.log"
        with log.open("a", encoding="utf-8") as file:
            print(time.time(), "begins", file=file, flush=True)
            engine = self.make()
            time.sleep(LOADING_SECONDS)
            print(time.time(), "ends", file=file, flush=True)
        return engine
