"""spin-evaluate@<row>: a model answers."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.metrics import evaluate_metrics, outcomes, tool_figures
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.play import play
from selfimprove.methods.spin.prompts import check_template, few_shot_text
from selfimprove.methods.spin.tasks import chosen, open_tools, tool_modules
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-evaluate", "spin", SpinParams, heavy=True)
def main(stage: Stage[SpinParams]) -> None:
    spin, cfg, prompt, row = stage.params, stage.params.evaluate, stage.params.prompt, stage.item
    model = stage.input(f"models/spin/{row}")
    check_template(model, prompt.format)
    tasks = stage.input("data/spin/tasks")
    split = read_jsonl(tasks / f"{cfg.split}.jsonl", Question)
    corpus = stage.input("data/spin/corpus.jsonl")
    for module in tool_modules(spin.tools):
        stage.input(module)
    task, prefix = spin.asked(cfg.split)
    few_shot = few_shot_text(prompt.few_shot, task)
    stage.narrow((prompt, few_shot, prefix, spin.tools, spin.engines["policy"], cfg))

    games = chosen(split, cfg)
    # The same noise for every model, so that differences are paired.
    seed = key_bits(stage.run.seed, "spin-evaluate")

    async def run() -> None:
        tools = open_tools(spin.tools, prompt.format, tasks, corpus)
        async with asking(stage, spin.engines, ["policy"], model, len(games)) as (engines, progress):
            play_one = lambda game: play(  # noqa: E731
                game[1], game[0], tools, engines["policy"], cfg, seed, form=prompt.format, few_shot=few_shot,
                prefix=prefix, iteration=stage.item,
            )  # fmt: skip
            episodes = await play_all(games, play_one, concurrency=cfg.concurrency, progress=progress)
        tools.close()
        stage.count_blocked(episodes)
        write_jsonl(stage.output(f"results/spin/{row}/episodes.jsonl"), episodes)
        write_jsonl(stage.output(f"results/spin/{row}/outcomes.jsonl"), outcomes(episodes))
        counted = tool_figures(tools.stats, tools.faults)
        write_json(stage.output(f"results/spin/{row}/metrics.json"), evaluate_metrics(episodes) | counted)

    asyncio.run(run())


if __name__ == "__main__":
    main()
