"""agent_r-evaluate@<row>: a model plays each task from its start and continues from the given bad beginnings."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import Episode, read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, say_diverged
from selfimprove.envs.replay import diverged, replay_counts
from selfimprove.methods.agent_r.beginnings import Beginning, beginning_of
from selfimprove.methods.agent_r.metrics import evaluate_metrics, outcomes
from selfimprove.methods.agent_r.params import AgentRParams, EvaluateParams
from selfimprove.methods.agent_r.play import play
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-evaluate", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, cfg, row = stage.params, stage.params.evaluate, stage.item
    model = stage.input(f"models/agent_r/{row}")
    split = load_split(stage.input("data/agent_r/tasks") / f"{cfg.split}.jsonl", agent_r.env.world_name)[: cfg.limit]
    beginnings = read_jsonl(stage.input("data/agent_r/beginnings.jsonl"), Beginning, may_be_empty=True)
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    games = [*map(beginning_of, split), *(beginnings if cfg.revision else [])]
    episodes = played(stage, model, games, cfg)
    first, revised = episodes[: len(split)], episodes[len(split) :]
    write_jsonl(stage.output(f"results/agent_r/{row}/episodes.jsonl"), episodes)
    write_jsonl(stage.output(f"results/agent_r/{row}/outcomes.jsonl"), outcomes(first, revised))
    write_json(stage.output(f"results/agent_r/{row}/metrics.json"), evaluate_metrics(first, revised))


def played(stage: Stage[AgentRParams], model: Path, games: list[Beginning], cfg: EvaluateParams) -> Sequence[Episode]:
    """One episode per game, with the same noise for every model so that differences are paired."""
    agent_r, seed = stage.params, key_bits(stage.run.seed, stage.name.partition("@")[0])

    async def run() -> Sequence[Episode]:
        world = agent_r.env.world()
        try:
            async with asking(stage, agent_r.engines, {"actor": model}, len(games)) as (engines, progress):
                one = lambda game: play(game.task_id, world, engines["actor"], cfg, seed, game.replies)  # noqa: E731
                episodes = await play_all(games, one, concurrency=cfg.concurrency, progress=progress)
                stage.timing |= replay_counts(world)
        finally:
            await world.close()
        stage.count_blocked(episodes)
        say_diverged(stage.name, diverged(world))
        return episodes

    return asyncio.run(run())


if __name__ == "__main__":
    main()
