"""spin-evaluate@<row>: a model answers the questions of a split."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, say_diverged
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.metrics import evaluate_metrics, outcomes
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.player import Player
from selfimprove.methods.spin.prompts import check_template
from selfimprove.methods.spin.tasks import chosen, tool_modules
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-evaluate", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    spin, cfg, prompt, row = stage.params, stage.params.evaluate, stage.params.prompt, stage.item
    model = stage.input(f"models/spin/{row}")
    check_template(model, prompt.format)
    tasks = stage.input("data/spin/tasks")
    split = read_jsonl(tasks / f"{cfg.split}.jsonl", Question)
    corpus = stage.input("data/spin/corpus.jsonl")
    for module in tool_modules(spin.tools):
        stage.input(module)
    player = Player.of(spin, spin.tools, cfg.split, tasks, corpus)
    stage.narrow((prompt, player.few_shot, player.prefix, spin.tools, spin.env, spin.engines["policy"], cfg))

    games = chosen(split, cfg)
    # The same noise for every model, so that differences between rows are paired.
    seed = key_bits(stage.run.seed, "spin-evaluate")

    async def run() -> None:
        async with player, asking(stage, spin.engines, {"policy": model}, len(games)) as (engines, progress):
            play_one = lambda game: player.play(game, engines["policy"], cfg, seed, stage.item)  # noqa: E731
            episodes = await play_all(games, play_one, concurrency=cfg.concurrency, progress=progress)
            stage.timing |= player.timing()
        stage.count_blocked(episodes)
        say_diverged(stage.name, player.diverged())
        write_jsonl(stage.output(f"results/spin/{row}/episodes.jsonl"), episodes)
        write_jsonl(stage.output(f"results/spin/{row}/outcomes.jsonl"), outcomes(episodes))
        write_json(stage.output(f"results/spin/{row}/metrics.json"), evaluate_metrics(episodes) | player.figures())

    asyncio.run(run())


if __name__ == "__main__":
    main()
