"""agent_r-beginnings: bad beginnings for the revision evaluation, the same for every model: the base's own failures."""

import asyncio

from selfimprove.engines.pool import figures, open_engines
from selfimprove.envs.make import make_world
from selfimprove.envs.replay import diverged, replay_figures
from selfimprove.methods.agent_r.beginnings import Beginning, bad_beginning
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.play import play
from selfimprove.methods.agent_r.tasks import load_panel
from selfimprove.pipeline.episodes import play_all, say_blocked, say_diverged
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.records import write_jsonl
from selfimprove.seeds import key_bits


@stage("agent_r-beginnings", "agent_r", AgentRParams, heavy=True)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, cfg = stage.params, stage.params.evaluate
    model = stage.input("models/agent_r/base")
    panel = load_panel(stage.input("data/agent_r/tasks") / f"{cfg.panel}.jsonl", agent_r.env.name)[: cfg.limit]
    stage.own_files(agent_r.env.recipes)
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    sampled = cfg.model_copy(update={"temperature": 1.0, "top_p": 1.0})
    seed = key_bits(stage.run.seed, "agent_r-beginnings")

    async def run() -> None:
        world = make_world(agent_r.env)
        try:
            with stage.journal("completions") as journal, stage.progress(len(panel)) as progress:
                async with open_engines(
                    agent_r.engines, ["actor"], policy_dir=model, threads=stage.run.threads, journal=journal
                ) as engines:
                    play_one = lambda task: play(task, world, engines["actor"], sampled, seed)  # noqa: E731
                    episodes = await play_all(panel, play_one, concurrency=cfg.concurrency, progress=progress)
                    stage.timing |= figures(engines) | replay_figures(world)
        finally:
            await world.close()
        say_blocked(stage.name, episodes)
        say_diverged(stage.name, diverged(world))
        rows = [
            Beginning(task_id=task, replies=replies)
            for task, episode in zip(panel, episodes, strict=True)
            if (replies := bad_beginning(episode, cfg.revision_prefix))
        ]
        write_jsonl(stage.output("data/agent_r/beginnings.jsonl"), rows[: cfg.revision_tasks])

    asyncio.run(run())


if __name__ == "__main__":
    main()
