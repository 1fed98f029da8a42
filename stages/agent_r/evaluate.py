"""agent_r-evaluate@<iteration>, agent_r-base-evaluate, agent_r-control-evaluate@<control>: a model plays.

The base plays twice: its own failures are the bad beginnings from which every model goes on.
"""

import asyncio
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import Episode, read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, say_diverged
from selfimprove.engines.pool import open_engines, usage
from selfimprove.envs.replay import diverged, replay_counts
from selfimprove.methods.agent_r.beginnings import Beginning, bad_beginnings, read_beginnings
from selfimprove.methods.agent_r.metrics import evaluate_metrics, outcomes
from selfimprove.methods.agent_r.params import AgentRParams, EvaluateParams
from selfimprove.methods.agent_r.play import play
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.stage import Stage, stage

BEGINNINGS = "data/agent_r/beginnings.jsonl"


@stage("agent_r-evaluate", "agent_r", AgentRParams, heavy=True)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, cfg, row = stage.params, stage.params.evaluate, stage.item
    model = stage.input(f"models/agent_r/{row}")
    split = load_split(stage.input("data/agent_r/tasks") / f"{cfg.split}.jsonl", agent_r.env.world_name)[: cfg.limit]
    given = None if row == "base" else read_jsonl(stage.input(BEGINNINGS), Beginning, may_be_empty=True)
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    async def run() -> None:
        world = agent_r.env.world()
        try:
            with stage.journal("completions") as journal:
                async with open_engines(
                    agent_r.engines, ["actor"], policy_dir=model, threads=stage.run.threads, journal=journal
                ) as engines:

                    async def all_of(games: list[Beginning], cfg: EvaluateParams, name: str) -> list[Episode]:
                        # The same noise for every model, so that differences are paired.
                        seed = key_bits(stage.run.seed, name)
                        one = lambda game: play(game.task_id, world, engines["actor"], cfg, seed, game.replies)  # noqa: E731
                        with stage.progress(len(games)) as progress:
                            progress.watch(engines)
                            episodes = await play_all(games, one, concurrency=cfg.concurrency, progress=progress)
                        stage.count_blocked(episodes)
                        return episodes

                    whole = [Beginning(task_id=task, replies=[]) for task in split]
                    beginnings = given or []
                    if given is None and cfg.revision and cfg.beginnings:
                        beginnings = read_beginnings(Path(cfg.beginnings), split)[: cfg.revision_tasks]
                    elif given is None and cfg.revision:
                        sampled = cfg.model_copy(update={"temperature": 1.0, "top_p": 1.0})
                        failed = await all_of(whole, sampled, "agent_r-beginnings")
                        beginnings = bad_beginnings(split, failed, cfg.revision_prefix)[: cfg.revision_tasks]
                    games = [*whole, *(beginnings if cfg.revision else [])]
                    episodes = await all_of(games, cfg, "agent_r-evaluate")
                    stage.timing |= usage(engines) | replay_counts(world)
        finally:
            await world.close()
        say_diverged(stage.name, diverged(world))
        played, revised = episodes[: len(split)], episodes[len(split) :]
        if given is None:
            write_jsonl(stage.output(BEGINNINGS), beginnings)
        write_jsonl(stage.output(f"results/agent_r/{row}/episodes.jsonl"), episodes)
        write_jsonl(stage.output(f"results/agent_r/{row}/outcomes.jsonl"), outcomes(played, revised))
        write_json(stage.output(f"results/agent_r/{row}/metrics.json"), evaluate_metrics(played, revised))

    asyncio.run(run())


if __name__ == "__main__":
    main()
