"""The engines of a stage that plays: over its journal, with its progress, and their throughput in its timing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
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
    names: Iterable[str],
    policy_dir: Path,
    total: int,
    *,
    expert: ExpertMaker | None = None,
) -> AsyncIterator[tuple[dict[str, Engine], StageProgress]]:
    """The engines called ``names`` (see ``open_engines``), and a progress over ``total`` units that watches them."""
    with stage.journal("completions") as journal, stage.progress(total) as progress:
        async with open_engines(
            configs,
            names,
            policy_dir=policy_dir,
            threads=stage.run.threads,
            journal=journal,
            expert=expert,
            cluster=stage.run.cluster,
        ) as engines:
            progress.watch(engines)
            yield engines, progress
            stage.timing |= usage(engines)
