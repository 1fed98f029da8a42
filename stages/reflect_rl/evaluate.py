"""reflect_rl-evaluate@<row>: a policy, with its reflection model if any, plays a split repeatedly."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.core.seeds import SeedKey, key_bits
from selfimprove.engines.base import Engine
from selfimprove.engines.episodes import play_all
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.methods.reflect_rl.episode import RLEpisode
from selfimprove.methods.reflect_rl.evaluate import EvaluationEpisode, evaluation_episodes
from selfimprove.methods.reflect_rl.metrics import evaluate_metrics, outcomes
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.prompts import MARKERS
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.methods.reflect_rl.start import check_environment, check_labels
from selfimprove.methods.rows import NONE
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.asking import asking
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-evaluate", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, cfg, row = stage.params, stage.params.evaluate, stage.pick(stage.params.rows)
    folder = stage.input("data/reflect_rl/tasks")
    models = {cfg.engine: stage.input(f"models/reflect_rl/{stage.item}")}
    if row.reflector != NONE:
        models["reflector"] = stage.input(f"models/reflect_rl/{row.reflector}")
    stage.narrow((reflect_rl.env, {key: reflect_rl.engines[key] for key in models}, cfg, reflect_rl.prompt))

    env, markers = reflect_rl.env.make(folder), MARKERS[reflect_rl.prompt.markers]
    check_environment(models[cfg.engine], env)
    check_labels(models[cfg.engine], env, None)

    async def one(game: EvaluationEpisode, engines: Mapping[str, Engine], key: SeedKey) -> RLEpisode:
        return await play(
            game.task, env, engines.get("reflector"), engines[cfg.engine], cfg, key, game.level, episode=game.rep,
            markers=markers,
        )  # fmt: skip

    evaluate(stage, folder, env, models, one)


def evaluate(
    stage: Stage[ReflectRLParams],
    folder: Path,
    env: EnumeratedEnv,
    models: Mapping[str, Path],
    play_one: Callable[[EvaluationEpisode, Mapping[str, Engine], SeedKey], Awaitable[RLEpisode]],
    reps: int | None = None,
) -> None:
    """Play the split and publish the row's results.

    Args:
        folder: the tasks; models: engine name -> its weights; reps: episodes per task (None: as in ``evaluate``).
    """
    reflect_rl, cfg = stage.params, stage.params.evaluate
    split = load_split(folder / f"{cfg.split}.jsonl", env.name)[: cfg.limit]
    asked = evaluation_episodes(env, split, cfg, reps)
    seed = key_bits(stage.run.seed, "reflect_rl-evaluate")  # same noise for every row: differences are paired

    async def run() -> Sequence[RLEpisode]:
        async with asking(stage, reflect_rl.engines, models, len(asked)) as (engines, progress):
            one = lambda game: play_one(game, engines, game.key(seed))  # noqa: E731
            return await play_all(asked, one, concurrency=cfg.concurrency, progress=progress)

    episodes = asyncio.run(run())
    stage.count_blocked(episodes)
    write_jsonl(stage.output(f"results/reflect_rl/{stage.item}/episodes.jsonl"), episodes)
    write_jsonl(stage.output(f"results/reflect_rl/{stage.item}/outcomes.jsonl"), outcomes(env.name, episodes))
    write_json(stage.output(f"results/reflect_rl/{stage.item}/metrics.json"), evaluate_metrics(episodes))


if __name__ == "__main__":
    main()
