"""rise-generate@<iteration>: in each turn, its model draws attempts at the training problems; the best is kept."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all
from selfimprove.envs.problems import load_split
from selfimprove.methods.rise.collect import Play, collect, collection_metrics
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.teacher import scripted_teacher
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-generate", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    rise, iteration = stage.params, stage.pick(stage.params.iterations)
    cfg, env = iteration.generate, stage.params.env.make()
    policy = stage.input(f"models/rise/{iteration.init}")
    split = load_split(stage.input("data/rise/tasks") / "train.jsonl", env)
    embedded = rise.tasks.source == "embedded"
    stage.narrow((rise.env, rise.engines, cfg, embedded))

    problems = cfg.select(split)
    play = Play(env, rise.env.few_shot, key_bits(stage.run.seed, stage.name))

    async def run() -> None:
        expert = lambda c: scripted_teacher(problems, env, embedded=embedded, error_rate=c.error_rate)  # noqa: E731
        models = dict.fromkeys(cfg.models, policy)
        async with play, asking(stage, rise.engines, models, len(problems), expert=expert) as (engines, progress):
            play_one = lambda problem: collect(problem, engines, play, cfg)  # noqa: E731
            episodes = await play_all(problems, play_one, concurrency=cfg.concurrency, progress=progress)
        stage.count_blocked(episodes)
        write_jsonl(stage.output(f"data/rise/{stage.item}/episodes.jsonl"), episodes)
        metrics = collection_metrics(episodes, cfg.context_window)
        write_json(stage.output(f"results/rise/{stage.item}/generate.json"), metrics)

    asyncio.run(run())


if __name__ == "__main__":
    main()
