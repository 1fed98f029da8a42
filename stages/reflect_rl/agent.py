"""reflect_rl-agent@<agent>: a player without trained weights (chance, the oracle, a chat model) plays the split."""

from collections.abc import Mapping

from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine
from selfimprove.methods.reflect_rl.agents import make_agent, play_agent
from selfimprove.methods.reflect_rl.episode import RLEpisode
from selfimprove.methods.reflect_rl.evaluate import EvaluationEpisode
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.pipeline.stage import Stage, stage
from stages.reflect_rl.evaluate import evaluate


@stage("reflect_rl-agent", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, agent = stage.params, stage.pick(stage.params.agents)
    folder = stage.input("data/reflect_rl/tasks")
    models = {agent.engine: folder} if agent.engine else {}
    stage.narrow((reflect_rl.env, {key: reflect_rl.engines[key] for key in models}, reflect_rl.evaluate, agent))
    env = reflect_rl.env.make(folder)

    async def one(game: EvaluationEpisode, engines: Mapping[str, Engine], key: SeedKey) -> RLEpisode:
        player = make_agent(agent, engines[agent.engine] if agent.engine else None)
        return await play_agent(game.task, env, player, key, game.level, episode=game.rep)

    evaluate(stage, folder, env, models, one, agent.eval_reps)


if __name__ == "__main__":
    main()
