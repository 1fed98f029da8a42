"""reflect_rl-evaluate@<run>, -base-evaluate, -control-evaluate@<control>, -agent-evaluate@<agent>: a policy, with its
reflection model if it has one, plays a split repeatedly.
"""

import asyncio
from contextlib import AsyncExitStack

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.base import Engine
from selfimprove.engines.episodes import play_all
from selfimprove.engines.pool import open_engines, usage
from selfimprove.methods.reflect_rl.agents import make_agent, play_agent
from selfimprove.methods.reflect_rl.episode import RLEpisode
from selfimprove.methods.reflect_rl.evaluate import EvaluationEpisode, evaluation_episodes
from selfimprove.methods.reflect_rl.metrics import evaluate_metrics, outcomes
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.prompts import MARKERS
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.methods.reflect_rl.start import check_environment, check_labels
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-evaluate", "reflect_rl", ReflectRLParams, heavy=True)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, cfg, name, row = stage.params, stage.params.evaluate, stage.item, stage.item
    folder, agent = stage.input("data/reflect_rl/tasks"), stage.params.agents.get(name)
    if agent is None:
        reflector = reflect_rl.reflector_of(name)
        models = {cfg.engine: stage.input(f"models/reflect_rl/{row}")}
        models |= {"reflector": stage.input(f"models/reflect_rl/{reflector}")} if reflector else {}
    else:
        models = {agent.engine: folder} if agent.engine else {}
    stage.narrow((reflect_rl.env, {key: reflect_rl.engines[key] for key in models}, cfg, agent, reflect_rl.prompt))

    env = reflect_rl.env.make(folder)
    if agent is None:
        check_environment(models[cfg.engine], env)
        check_labels(models[cfg.engine], env, None)
    split = load_split(folder / f"{cfg.split}.jsonl", env.name)[: cfg.limit]
    asked = evaluation_episodes(env, split, cfg, agent.eval_reps if agent else None)
    seed, markers = key_bits(stage.run.seed, "reflect_rl-evaluate"), MARKERS[reflect_rl.prompt.markers]

    async def run() -> None:
        async with AsyncExitStack() as stack:
            journal = stack.enter_context(stage.journal("completions"))
            progress = stack.enter_context(stage.progress(len(asked)))
            engines: dict[str, Engine] = {}
            for key, model in models.items():  # each over its own weights
                engines |= await stack.enter_async_context(
                    open_engines(
                        reflect_rl.engines, [key], policy_dir=model, threads=stage.run.threads, journal=journal
                    )
                )

            progress.watch(engines)

            async def one(game: EvaluationEpisode) -> RLEpisode:
                task, level, rep = game
                if agent is not None:
                    player = make_agent(agent, engines[agent.engine] if agent.engine else None)
                    return await play_agent(task, env, player, game.key(seed), level, episode=rep)
                return await play(
                    task, env, engines.get("reflector"), engines[cfg.engine], cfg, game.key(seed), level, episode=rep,
                    markers=markers,
                )  # fmt: skip

            episodes = await play_all(asked, one, concurrency=cfg.concurrency, progress=progress)
            stage.timing |= usage(engines)
        stage.count_blocked(episodes)
        write_jsonl(stage.output(f"results/reflect_rl/{row}/episodes.jsonl"), episodes)
        write_jsonl(stage.output(f"results/reflect_rl/{row}/outcomes.jsonl"), outcomes(env.name, episodes))
        write_json(stage.output(f"results/reflect_rl/{row}/metrics.json"), evaluate_metrics(episodes))

    asyncio.run(run())


if __name__ == "__main__":
    main()
