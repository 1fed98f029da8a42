"""spin-generate@<iteration>: the opponent plays the training questions, hundreds of episodes concurrently."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, say_diverged
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.metrics import evaluate_metrics
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.player import Player
from selfimprove.methods.spin.prompts import check_template
from selfimprove.methods.spin.tasks import chosen, tool_modules
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-generate", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    spin, iteration = stage.params, stage.pick(stage.params.iterations)
    cfg, prompt, tools_cfg = iteration.generate, spin.prompt, spin.play_tools or spin.tools
    opponent = stage.input(f"models/spin/{iteration.init}")
    check_template(opponent, prompt.format)
    tasks = stage.input("data/spin/tasks")
    split = read_jsonl(tasks / "train.jsonl", Question)
    corpus = stage.input("data/spin/corpus.jsonl")
    for module in tool_modules(tools_cfg):
        stage.input(module)
    player = Player.of(spin, tools_cfg, "train", tasks, corpus)
    stage.narrow((prompt, player.few_shot, player.prefix, tools_cfg, spin.env, spin.engines["policy"], cfg))

    games = [(index, question, run) for run in range(cfg.runs) for index, question in chosen(split, cfg)]
    seed = key_bits(stage.run.seed, stage.name)

    async def run() -> None:
        async with player, asking(stage, spin.engines, {"policy": opponent}, len(games)) as (engines, progress):
            policy = engines["policy"]
            play_one = lambda game: player.play(game[:2], policy, cfg, seed, stage.item, game[2])  # noqa: E731
            episodes = await play_all(games, play_one, concurrency=cfg.concurrency, progress=progress)
            stage.timing |= player.timing()
        stage.count_blocked(episodes)
        say_diverged(stage.name, player.diverged())
        write_jsonl(stage.output(f"data/spin/{stage.item}/episodes.jsonl"), episodes)
        metrics = evaluate_metrics(episodes) | player.figures()
        write_json(stage.output(f"results/spin/{stage.item}/generate.json"), metrics)

    asyncio.run(run())


if __name__ == "__main__":
    main()
