"""rise-evaluate@<row>: evaluates a model over sequential turns and parallel samples."""

import asyncio

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import key_bits
from selfimprove.core.tables import write_csv
from selfimprove.engines.episodes import play_all
from selfimprove.envs.problems import load_split
from selfimprove.methods.rise.collect import Play, evaluate
from selfimprove.methods.rise.metrics import accuracy_rows, evaluate_metrics, outcomes
from selfimprove.methods.rise.params import RiseParams
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-evaluate", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    rise, cfg, row = stage.params, stage.params.evaluate, stage.item
    env = rise.env.make()
    model = stage.input(f"models/rise/{row}")
    split = load_split(stage.input("data/rise/tasks") / f"{cfg.split}.jsonl", env)[: cfg.limit]
    stage.narrow((rise.env, rise.engines["student"], cfg))

    # The same noise for every model, so that differences between rows are paired.
    play = Play(env, rise.env.few_shot, key_bits(stage.run.seed, "rise-evaluate"))

    async def run() -> None:
        async with play, asking(stage, rise.engines, {"student": model}, len(split)) as (engines, progress):
            play_one = lambda problem: evaluate(problem, engines["student"], play, cfg)  # noqa: E731
            played = await play_all(split, play_one, concurrency=cfg.concurrency, progress=progress)
        sequential, parallel = [one for one, _ in played], [one for _, one in played]
        stage.count_blocked(sequential)
        whole = {"turns": cfg.max_turns, "samples": cfg.parallel_samples}
        metrics = evaluate_metrics(
            sequential, parallel, env.equivalent, **whole, oracle=cfg.oracle, window=cfg.context_window
        )
        each = outcomes(sequential, parallel, env.equivalent, **whole, oracle=cfg.oracle)
        write_jsonl(stage.output(f"results/rise/{row}/episodes.jsonl"), [*sequential, *parallel])
        write_jsonl(stage.output(f"results/rise/{row}/outcomes.jsonl"), each)
        write_json(stage.output(f"results/rise/{row}/metrics.json"), metrics)
        write_csv(stage.output(f"results/rise/{row}/turns.csv"), accuracy_rows(metrics))

    asyncio.run(run())


if __name__ == "__main__":
    main()
