"""reflect_rl-data: the tasks of Reflect-RL as frozen splits; AutoExplore's tasks themselves, and what is explored."""

import asyncio
import sys
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_rows
from selfimprove.core.seeds import key_bits
from selfimprove.engines.config import EngineConfig, OpenAiEngineConfig
from selfimprove.envs.autoexplore.inventory import inventory
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.llm_tasks import Asked, make_llm_tasks
from selfimprove.envs.autoexplore.playable import Playable, playable_tasks, write_tasks
from selfimprove.envs.autoexplore.world import AutoExploreParams
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.tasks import build_splits
from selfimprove.methods.rows import NONE
from selfimprove.methods.splits import split_hash, to_rows
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-data", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    params, cfg = stage.params.env, stage.params.tasks
    teacher = stage.params.engines[cfg.teacher] if cfg.teacher and isinstance(params, AutoExploreParams) else None
    stage.narrow((params, cfg, teacher))

    # What rows that play without a reflection model name in its place; DVC has no input that may be absent.
    stage.output(f"models/reflect_rl/{NONE}").write_text("no model\n", encoding="utf-8")
    folder = stage.output("data/reflect_rl/tasks")
    folder.mkdir()
    if isinstance(params, AutoExploreParams):
        write_json(folder / "repos.json", [row.model_dump(mode="json") for row in inventory(params.repositories())])
        asked = None
        if teacher is not None:
            asked = asyncio.run(ask(stage, params, teacher))
            write_json(folder / "asked.json", dict(sorted(asked.counts.items())))
        found = playable_tasks(params, Path(cfg.file) if cfg.file else None, asked.tasks if asked else None)
        write_tasks(folder / TASKS_FILE, found.tasks)
        if found.dropped:
            say_dropped(stage.name, cfg.file or "the teacher", found)
            write_json(folder / "dropped.json", found.dropped)
    env = params.make(folder)
    splits = build_splits(cfg, env, seed=stage.run.seed)
    for name, ids in splits.items():
        write_rows(folder / f"{name}.jsonl", to_rows(env.name, ids))
    sizes = {
        name: {
            "n": len(ids),
            "hash": split_hash(ids),
            "levels": {level: len(env.level_tasks(level, ids)) for level in env.levels},
        }
        for name, ids in splits.items()
    }
    write_json(folder / "splits.json", sizes)


async def ask(stage: Stage[ReflectRLParams], params: AutoExploreParams, teacher: EngineConfig) -> Asked:
    """The teacher's questions; an answer that is in the journal is not asked for again."""
    cfg = stage.params.tasks
    name = str(cfg.teacher)
    async with asking(stage, {name: teacher}, [name], stage.scratch, 0) as (engines, progress):
        asked = await make_llm_tasks(
            engines[name], params.repositories(), key_bits(stage.run.seed, stage.name), cfg.asking,
            model=teacher.model if isinstance(teacher, OpenAiEngineConfig) else name,
            max_files=params.files_per_repo, max_level=params.max_level, progress=progress.reach,
        )  # fmt: skip
    if asked.counts["failed"]:
        print(
            f"{stage.name}: the teacher failed at {asked.counts['failed']} of {asked.counts['files']} files, which "
            f"have no tasks; the first: {' '.join(str(asked.error).split())}",
            file=sys.stderr,
        )
    return asked


def say_dropped(name: str, source: str, found: Playable) -> None:
    """One line about the tasks that cannot be played."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items())
    print(
        f"{name}: {sum(found.dropped.values())} of {found.read} tasks of {source} cannot be played and were dropped: "
        f"{reasons}.",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
