"""Episodes per second of CPU time for each method on each environment: the cost of both without a model.

The environment's expert plays, and its replies are computed before the clock starts. A rate is therefore the limit of a
stage in one process, however fast its engine: hundreds of concurrent episodes, including prompts, actions, scoring and
recording. ``BENCH=matrix make bench`` prints the table, and JSON on its last line. WebShop has 300 products, the
encyclopedia 60 people; environments with further requirements (ScienceWorld: Java) are omitted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.rates import print_table
from selfimprove.core.records import read_rows
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Request
from selfimprove.engines.episodes import play_all
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.interface import AgentEnv, AnswerEnv, EmbeddedWorld, MakesProblems, Move, Problem
from selfimprove.envs.labels import oracle_label
from selfimprove.envs.matrix import TITLES, cells
from selfimprove.envs.params import AnswerParams
from selfimprove.envs.qa.experts import Round
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.registry import answer_env, listed_env, named, text_env
from selfimprove.envs.splits import beside
from selfimprove.methods.agent_r.params import EvaluateParams
from selfimprove.methods.agent_r.play import play as play_agent_r
from selfimprove.methods.reflect_rl.rl_config import ActingParams
from selfimprove.methods.reflect_rl.rollout import play as play_reflect_rl
from selfimprove.methods.rise.collect import Play, collect
from selfimprove.methods.rise.params import GenerateParams
from selfimprove.methods.spin.acting import WorldPartner, question_of, task_of
from selfimprove.methods.spin.answering import question_of as question_of_problem
from selfimprove.methods.spin.answering import scorer
from selfimprove.methods.spin.params import PlayParams
from selfimprove.methods.spin.play import play as play_spin
from selfimprove.methods.spin.play import play_with
from selfimprove.methods.spin.prompts import said
from selfimprove.methods.spin.tasks import open_tools
from tests.support.worlds import HERE, keys_of, problem_files

AT_ONCE = 512
LONGEST = 100
"""Maximum number of turns in an episode."""

Work = tuple[Sequence[Any], Callable[[Any], Awaitable[Any]]]
"""The tasks, and a function that plays one episode."""


def measure(*, threads: int, episodes: int = 200, rounds: int = 2) -> dict[str, Any]:
    """Method -> environment -> episodes per second of CPU time in the best round; None if it is impossible.

    Args:
        threads: unused; one process plays.
        episodes: episodes per combination, limited to the environment's number of tasks.
    """
    rates: dict[str, dict[str, float | None]] = {method: {} for method in TITLES}
    possible = cells()
    with TemporaryDirectory() as place:
        for name in HERE:
            for method, make in WORKS.items():
                folder = Path(place, name, method)
                folder.mkdir(parents=True)
                can = possible[method, name].possible
                rates[method][name] = round(_rate(make(name, folder, episodes), rounds), 1) if can else None
    return {"episodes": episodes, "episodes_per_second": rates}


def _rate(work: Work, rounds: int) -> float:
    tasks, one = work
    best = 0.0
    for _ in range(rounds):
        began = time.process_time()
        played = asyncio.run(play_all(tasks, one, concurrency=AT_ONCE))
        best = max(best, len(tasks) / (time.process_time() - began))
        assert all(episode.status == "solved" for episode in played), "the expert has failed"
    return best


def _replies(replies: Mapping[tuple[str, int], str]) -> ScriptedEngine:
    """An engine that looks up its replies by task and turn."""

    def answer(request: Request, sample: int) -> str:
        return replies[request.seed.task, request.seed.turn]

    return ScriptedEngine(answer)


def _ways(env: AgentEnv, episodes: int) -> dict[int, list[Move]]:
    """Task -> the expert's moves."""
    ways = {}
    for task in list(env.task_ids())[:episodes]:
        env.reset(task)
        ways[task] = env.expert()
    return ways


def _problems(name: str, env: AnswerEnv, folder: Path, episodes: int) -> list[Problem]:
    if isinstance(env, MakesProblems):
        return env.problems({"train": min(episodes, _tasks(name, folder, episodes))}, seed=17)["train"]
    file = Path(problem_files(folder)["train"])
    return env.load(read_rows(file), file)


def _tasks(name: str, folder: Path, episodes: int) -> int:
    """``episodes``, or the number of training tasks if the problems are tasks of an environment that is acted in."""
    if name in named(AnswerParams):
        return episodes
    ids = text_env(**keys_of(name, folder)).make().task_ids()
    return len(beside(ids, ids[0]))


def _rise(name: str, folder: Path, episodes: int) -> Work:
    env = answer_env(**keys_of(name, folder)).make()
    problems = _problems(name, env, folder, episodes)
    engine = _replies({(problem.id, 0): env.demonstration(problem) for problem in problems})
    cfg = GenerateParams(tasks=len(problems), max_turns=1, models=["student"], num_of_samples=[1])
    play = Play(env, False, 17)
    return problems, lambda problem: collect(problem, {"student": engine}, play, cfg)


def _agent_r(name: str, folder: Path, episodes: int) -> Work:
    env = text_env(**keys_of(name, folder, attempts=name in named(AnswerParams))).make()
    ways = _ways(env, episodes)
    replies = {
        (f"{env.name}-{task}", turn): f"Thought: {move.thought}\nAction: {move.action}"
        for task, way in ways.items()
        for turn, move in enumerate(way)
    }
    world, engine, cfg = EmbeddedWorld(env), _replies(replies), EvaluateParams(max_turns=LONGEST)
    return list(ways), lambda task: play_agent_r(task, world, engine, cfg, 17)


def _reflect_rl(name: str, folder: Path, episodes: int) -> Work:
    env = listed_env(**{**keys_of(name, folder), "max_turns": LONGEST}).make()
    tasks, replies = list(env.task_ids())[:episodes], {}
    for task in tasks:
        copy, turn = env.copy(), 0
        copy.reset(task, 0, "")
        while (label := oracle_label(copy)) is not None:
            replies[str(task), turn] = label
            copy.step(label)
            turn += 1
    engine, cfg = _replies(replies), ActingParams(mask_invalid=True)
    return tasks, lambda task: play_reflect_rl(task, env, None, engine, cfg, SeedKey(17, str(task)))


def _spin(name: str, folder: Path, episodes: int) -> Work:
    cfg = PlayParams(max_turns=LONGEST)
    if name in named(AnswerParams):
        env = answer_env(**keys_of(name, folder)).make()
        problems = _problems(name, env, folder, episodes)
        engine = _replies({(problem.id, 0): env.demonstration(problem) for problem in problems})
        score, none = scorer(env), open_tools(ToolsParams(), "reply", folder, folder)
        return [question_of_problem(one, env.name) for one in problems], lambda question: play_spin(
            question, 0, none, engine, cfg, 17, form="reply", score=score
        )
    world = text_env(**keys_of(name, folder)).make()
    ways = _ways(world, episodes)
    rounds = {task: [Round(thought=move.thought, action=move.action) for move in way] for task, way in ways.items()}
    replies = {
        (f"{world.name}-{task}", turn): said(one.thought, one.action, "alpaca")
        for task, way in rounds.items()
        for turn, one in enumerate(way)
    }
    policy, shared = _replies(replies), EmbeddedWorld(world)
    return [question_of(world, task) for task in ways], lambda question: play_with(
        WorldPartner(shared, task_of(question)), question, 0, policy, cfg, 17, form="alpaca"
    )


WORKS: dict[str, Callable[[str, Path, int], Work]] = {
    "rise": _rise,
    "agent_r": _agent_r,
    "reflect_rl": _reflect_rl,
    "spin": _spin,
}


def show(metrics: dict[str, Any]) -> None:
    """Print the table: one row per environment, one column per method."""
    rates = metrics["episodes_per_second"]
    names = list(next(iter(rates.values())))
    rows = [
        (name, *("-" if rates[method][name] is None else f"{rates[method][name]:,.0f}" for method in TITLES))
        for name in names
    ]
    print_table("episodes in a second of CPU time, without a model", ("environment", *TITLES.values()), rows)
