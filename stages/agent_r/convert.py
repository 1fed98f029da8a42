"""agent_r-convert@<iteration>: converts trees to revision and good trajectories; the actor judges its own errors."""

import asyncio
import sys

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example, read_jsonl, write_jsonl, write_rows
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import say_diverged
from selfimprove.envs.interface import Mixes
from selfimprove.envs.replay import diverged, replay_counts
from selfimprove.methods.agent_r.convert import convert
from selfimprove.methods.agent_r.judge import ActorJudge, Judge, ScriptedJudge
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.tree import Tree
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-convert", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, iteration = stage.params, stage.pick(stage.params.iterations)
    cfg = iteration.convert
    actor = stage.input(f"models/agent_r/{iteration.init}")
    trees = read_jsonl(stage.input(f"data/agent_r/{stage.item}/trees.jsonl"), Tree)
    parent = stage.input(f"data/agent_r/{iteration.init}/train")
    base = stage.input("data/agent_r/base/train/examples.jsonl")
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    earlier = {
        name: read_jsonl(parent / f"{name}.jsonl", Example, may_be_empty=True)
        for name in ("collected", "good", "direct")
    }
    warm = read_jsonl(base, Example, may_be_empty=True) if cfg.mix.warm_start else []
    seed = key_bits(stage.run.seed, stage.name)
    # Controls train on the same trees without judge or revision; ``or 1.0`` covers a mix without good trajectories.
    direct_cfg = cfg.model_copy(update={"data_type": "centric", "revise": False})
    good_mix = cfg.mix.model_copy(update={"good": cfg.mix.good or 1.0})
    good_cfg = cfg.model_copy(update={"data_type": "good", "mix": good_mix})

    async def run() -> None:
        world = agent_r.env.world()
        try:
            asked = {"actor": actor} if cfg.judge == "actor" and cfg.revise and cfg.data_type == "centric" else {}
            async with asking(stage, agent_r.engines, asked, 0) as (engines, progress):
                judge: Judge | None = ActorJudge(engines["actor"], cfg, seed) if engines else None
                if cfg.judge == "scripted":
                    expert = agent_r.env.make()
                    names = expert.part_names() if isinstance(expert, Mixes) else [expert.name]
                    judge = ScriptedJudge(dict.fromkeys(names, expert))
                made = await convert(
                    trees, judge, world, cfg, seed, earlier["collected"], warm_start=warm, progress=progress
                )
                direct = await convert(trees, None, world, direct_cfg, seed, earlier["direct"], warm_start=warm)
                good = await convert(trees, None, world, good_cfg, seed, earlier["good"], warm_start=warm)
                stage.timing |= replay_counts(world)
        finally:
            await world.close()
        for one in (made, direct):
            stage.count_failed(one.failed, one.stats["kept_pairs"], "revision trajectories", "They are left out")
        for sentence in made.warnings:
            print(f"{stage.name}: {sentence}", file=sys.stderr)
        say_diverged(stage.name, diverged(world))
        folder = stage.output(f"data/agent_r/{stage.item}/train")
        folder.mkdir()
        write_jsonl(folder / "examples.jsonl", made.examples)
        write_rows(folder / f"{agent_r.env.world_name}_{cfg.data_type}.jsonl", made.rows)
        # Everything collected up to this iteration, for successors that accumulate and for the controls.
        write_jsonl(folder / "collected.jsonl", [*earlier["collected"], *made.own])
        write_jsonl(folder / "good.jsonl", [*earlier["good"], *good.own])
        write_jsonl(folder / "direct.jsonl", [*earlier["direct"], *direct.own])
        write_json(stage.output(f"results/agent_r/{stage.item}/convert.json"), made.stats)

    asyncio.run(run())


if __name__ == "__main__":
    main()
