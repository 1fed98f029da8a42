"""spin-generate@<iteration>: the opponent plays the training questions, hundreds of episodes at once."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl, write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.engines.episodes import play_all, shard_of
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.metrics import evaluate_metrics, tool_figures
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.play import play
from selfimprove.methods.spin.prompts import check_template, few_shot_text
from selfimprove.methods.spin.tasks import chosen, open_tools, tool_modules
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-generate", "spin", SpinParams, heavy=True)
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
    task, prefix = spin.asked("train")
    few_shot = few_shot_text(prompt.few_shot, task)
    stage.narrow((prompt, few_shot, prefix, tools_cfg, spin.engines["policy"], cfg))

    games = [(index, question, run) for run in range(cfg.runs) for index, question in chosen(split, cfg)]
    seed = key_bits(stage.run.seed, stage.name)

    async def run() -> None:
        tools = open_tools(tools_cfg, prompt.format, tasks, corpus)
        async with asking(stage, spin.engines, ["policy"], opponent, len(games)) as (engines, progress):
            play_one = lambda game: play(  # noqa: E731
                game[1], game[0], tools, engines["policy"], cfg, seed, form=prompt.format, few_shot=few_shot,
                prefix=prefix, iteration=stage.item, run=game[2],
            )  # fmt: skip
            mine = shard_of(games, stage.shard)
            episodes = await play_all(mine, play_one, concurrency=cfg.concurrency, progress=progress)
        tools.close()
        stage.count_blocked(episodes)
        stage.end_shard()
        write_jsonl(stage.output(f"data/spin/{stage.item}/episodes.jsonl"), episodes)
        counted = tool_figures(tools.stats, tools.faults)
        write_json(stage.output(f"results/spin/{stage.item}/generate.json"), evaluate_metrics(episodes) | counted)

    asyncio.run(run())


if __name__ == "__main__":
    main()
