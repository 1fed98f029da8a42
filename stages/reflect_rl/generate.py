"""reflect_rl-generate: the teacher's complete and negative trajectories with reflections, hundreds concurrently."""

import asyncio
import sys

from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.config import OpenAiEngineConfig, ScriptedEngineConfig
from selfimprove.engines.episodes import play_all
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory, TeachingTask, teach, teaching_tasks
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.teacher import ChatTeacher, ScriptedTeacher, Teacher
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-generate", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, cfg = stage.params, stage.params.generate
    folder, config = stage.input("data/reflect_rl/tasks"), reflect_rl.engines[cfg.teacher]
    stage.narrow((reflect_rl.env, config, cfg))

    env = reflect_rl.env.model_copy(update={"max_turns": cfg.max_turns}).make(folder)
    train = load_split(folder / "train.jsonl", env.name)
    asked, seed = teaching_tasks(train, cfg), key_bits(stage.run.seed, stage.name)
    for key, count in (("tasks", cfg.tasks), ("negative_tasks", cfg.negative_tasks)):
        if (count or 0) > len(train):
            print(
                f"{stage.name}: generate.{key} is {count}, but there are {len(train)} training tasks.", file=sys.stderr
            )
    chat = {} if isinstance(config, ScriptedEngineConfig) else {cfg.teacher: folder}

    async def run() -> None:
        async with asking(stage, reflect_rl.engines, chat, len(asked)) as (engines, progress):
            if isinstance(config, ScriptedEngineConfig):
                teacher: Teacher = ScriptedTeacher(config.error_rate)
            else:
                name = config.model if isinstance(config, OpenAiEngineConfig) else cfg.teacher
                teacher = ChatTeacher(engines[cfg.teacher], name, cfg)

            async def one(job: TeachingTask) -> list[TeacherTrajectory]:
                made = await teach(job, env, teacher, cfg, seed)
                return [] if made is None else [made]

            made = await play_all(asked, one, concurrency=cfg.concurrency, progress=progress)
        trajectories = [trajectory for found in made for trajectory in found]
        stage.count_blocked(trajectories)
        if none := len(asked) - len(trajectories):
            print(
                f"{stage.name}: {none} of {len(asked)} trajectories do not exist, because too few other files are "
                "listed, or max_turns leaves no step for the correction.", file=sys.stderr
            )  # fmt: skip
        write_jsonl(stage.output("data/reflect_rl/trajectories.jsonl"), trajectories)

    asyncio.run(run())


if __name__ == "__main__":
    main()
