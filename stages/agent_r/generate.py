"""agent_r-generate@<iteration>: builds a search tree for each task of the training split, hundreds concurrently."""

import asyncio
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, say_diverged
from selfimprove.envs.replay import diverged, replay_counts
from selfimprove.methods.agent_r.beginnings import read_beginnings
from selfimprove.methods.agent_r.expert import scripted_actor
from selfimprove.methods.agent_r.metrics import search_metrics
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tasks import select
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-generate", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, iteration = stage.params, stage.pick(stage.params.iterations)
    cfg = iteration.generate
    policy = stage.input(f"models/agent_r/{iteration.init}")
    split = load_split(stage.input("data/agent_r/tasks") / "train.jsonl", agent_r.env.world_name)
    stage.narrow((agent_r.env, agent_r.engines[cfg.engine], cfg))

    tasks, seed = select(split, cfg), key_bits(stage.run.seed, stage.name)
    given = read_beginnings(Path(cfg.prior), tasks) if cfg.prior else []
    prior = {one.task_id: one.replies for one in given}

    async def run() -> None:
        world = agent_r.env.world()
        try:
            expert = lambda c: scripted_actor(agent_r.env.make(), c.error_rate)  # noqa: E731
            policies = {cfg.engine: policy}
            async with asking(stage, agent_r.engines, policies, len(tasks), expert=expert) as (engines, progress):
                search_one = lambda task: search(task, world, engines[cfg.engine], cfg, seed, prior.get(task, ()))  # noqa: E731
                trees = await play_all(tasks, search_one, concurrency=cfg.concurrency, progress=progress)
                stage.timing |= replay_counts(world)
        finally:
            await world.close()
        stage.count_blocked(trees)
        say_diverged(stage.name, diverged(world))
        write_jsonl(stage.output(f"data/agent_r/{stage.item}/trees.jsonl"), trees)
        write_json(stage.output(f"results/agent_r/{stage.item}/generate.json"), search_metrics(trees, diverged(world)))

    asyncio.run(run())


if __name__ == "__main__":
    main()
