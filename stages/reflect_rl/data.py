"""reflect_rl-data: Reflect-RL's tasks as frozen splits, and the files that the environment needs to play them."""

import asyncio
import sys
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_rows
from selfimprove.core.seeds import key_bits
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.envs.params import AskedTeacher
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.tasks import build_splits
from selfimprove.methods.rows import NONE
from selfimprove.methods.splits import sizes, to_rows
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-data", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    params, cfg = stage.params.env, stage.params.tasks
    stage.narrow((params, cfg, stage.params.engines[cfg.teacher] if cfg.teacher else None))

    # Placeholder input of rows that play without a reflection model: DVC has no optional dependencies.
    stage.output(f"models/reflect_rl/{NONE}").write_text("no model\n", encoding="utf-8")
    folder = stage.output("data/reflect_rl/tasks")
    folder.mkdir()
    for sentence in asyncio.run(prepare(stage, folder)):
        print(f"{stage.name}: {sentence}", file=sys.stderr)
    env = params.make(folder)
    splits = build_splits(cfg, env, seed=stage.run.seed)
    for name, ids in splits.items():
        write_rows(folder / f"{name}.jsonl", to_rows(env.name, ids))
    said = sizes(splits)
    for name, ids in splits.items():
        said[name]["levels"] = {level: len(env.level_tasks(level, ids)) for level in env.levels}
    write_json(folder / "splits.json", said)


async def prepare(stage: Stage[ReflectRLParams], folder: Path) -> list[str]:
    """Write the environment's own files; a teacher's answer found in the journal is not requested again."""
    env, cfg = stage.params.env, stage.params.tasks
    if cfg.teacher is None:
        return await env.prepare(folder, Path(cfg.file) if cfg.file else None)
    teacher = stage.params.engines[cfg.teacher]
    model = teacher.model if isinstance(teacher, OpenAiEngineConfig) else cfg.teacher
    seed = key_bits(stage.run.seed, stage.name)
    async with asking(stage, {cfg.teacher: teacher}, {cfg.teacher: stage.scratch}, 0) as (engines, progress):
        return await env.prepare(
            folder, asked=AskedTeacher(engines[cfg.teacher], cfg.asking, seed, model, progress.reach)
        )


if __name__ == "__main__":
    main()
