"""agent_r-evaluate@<iteration>, agent_r-base-evaluate, agent_r-control-evaluate (one by one): a model plays."""

import asyncio

from selfimprove.engines.pool import figures, open_engines
from selfimprove.envs.make import make_world
from selfimprove.envs.replay import diverged, replay_figures
from selfimprove.methods.agent_r.beginnings import Beginning
from selfimprove.methods.agent_r.metrics import evaluate_metrics, outcomes
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.play import play
from selfimprove.methods.agent_r.tasks import load_panel
from selfimprove.pipeline.episodes import play_all, say_blocked, say_diverged
from selfimprove.pipeline.publish import write_json
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.records import read_jsonl, write_jsonl
from selfimprove.seeds import key_bits


@stage("agent_r-evaluate", "agent_r", AgentRParams, heavy=True)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, cfg, row = stage.params, stage.params.evaluate, stage.place
    model = stage.input(f"models/agent_r/{row}")
    panel = load_panel(stage.input("data/agent_r/tasks") / f"{cfg.panel}.jsonl", agent_r.env.name)[: cfg.limit]
    given = read_jsonl(stage.input("data/agent_r/beginnings.jsonl"), Beginning, may_be_empty=True)
    stage.own_files(agent_r.env.recipes)
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    # From the start, and from a given bad beginning; the same noise for every model, so that differences are paired.
    games: list[tuple[int, list[str]]] = [(task, []) for task in panel]
    if cfg.revision:
        games += [(beginning.task_id, beginning.replies) for beginning in given]
    seed = key_bits(stage.run.seed, "agent_r-evaluate")

    async def run() -> None:
        world = make_world(agent_r.env)
        try:
            with stage.journal("completions") as journal, stage.progress(len(games)) as progress:
                async with open_engines(
                    agent_r.engines, ["actor"], policy_dir=model, threads=stage.run.threads, journal=journal
                ) as engines:
                    play_one = lambda game: play(game[0], world, engines["actor"], cfg, seed, game[1])  # noqa: E731
                    episodes = await play_all(games, play_one, concurrency=cfg.concurrency, progress=progress)
                    stage.timing |= figures(engines) | replay_figures(world)
        finally:
            await world.close()
        say_blocked(stage.name, episodes)
        say_diverged(stage.name, diverged(world))
        played, revised = episodes[: len(panel)], episodes[len(panel) :]
        write_jsonl(stage.output(f"results/agent_r/{row}/episodes.jsonl"), episodes)
        write_jsonl(stage.output(f"results/agent_r/{row}/outcomes.jsonl"), outcomes(played, revised))
        write_json(stage.output(f"results/agent_r/{row}/metrics.json"), evaluate_metrics(played, revised))

    asyncio.run(run())


if __name__ == "__main__":
    main()
