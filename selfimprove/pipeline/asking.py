"""Opens the engines of a stage that plays, with the stage's journal, progress and throughput statistics."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from selfimprove.engines.base import Engine
from selfimprove.engines.config import EngineConfig
from selfimprove.engines.pool import ExpertMaker, open_engines, usage
from selfimprove.engines.progress import StageProgress
from selfimprove.pipeline.stage import Stage


@asynccontextmanager
async def asking(
    stage: Stage[Any],
    configs: Mapping[str, EngineConfig],
    policies: Mapping[str, Path],
    total: int,
    *,
    expert: ExpertMaker | None = None,
) -> AsyncIterator[tuple[dict[str, Engine], StageProgress]]:
    """Yield the engines of ``policies`` (see ``open_engines``) and a progress of ``total`` units that monitors them."""
    with stage.journal() as journal, stage.progress(total) as progress:
        async with open_engines(
            configs, policies, threads=stage.run.threads, journal=journal, expert=expert, cluster=stage.run.cluster
        ) as engines:
            progress.watch(engines)
            yield engines, progress
            stage.timing |= usage(engines)
