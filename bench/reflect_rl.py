"""Episode collection for reinforcement learning: three implementations, all with the same models.

- ``ours``: ``methods.reflect_rl.rollout.play``, hundreds of concurrent episodes in one process per thread; reflections
  and actions are batched as they arrive, and identical greedy reflections are generated once;
- ``original``: the released code's order of work: batches of four episodes run until the last of them ends; at each
  step transformers' ``generate`` writes the reflections of all four, then the actions, each from the full, left-padded
  prompt;
- ``engine``: the requests of ours, known beforehand and submitted at once, first all reflections, then all actions,
  to the same number of processes.

``BENCH=reflect_rl make bench`` prints a table, and JSON on its last line. The environment is DangerousTaxi; the models
have 0.2M parameters and are warm-started on the scripted teacher's episodes, as in the default pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bench.rates import answer_all, print_rates
from bench.warm import engine_of, warm_started
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import EngineStats
from selfimprove.engines.cache import RememberingEngine
from selfimprove.engines.episodes import play_all
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.taxi.listed import EnumeratedTaxi
from selfimprove.methods.reflect_rl.convert import convert, texts
from selfimprove.methods.reflect_rl.generate import teach, teaching_tasks
from selfimprove.methods.reflect_rl.params import GenerateParams
from selfimprove.methods.reflect_rl.prompts import MARKERS, cut_reflection, policy_prompt, reflection_prompt
from selfimprove.methods.reflect_rl.rl_config import ActingParams
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.methods.reflect_rl.teacher import ScriptedTeacher
from selfimprove.models.tokenizer import TokenizerParams
from tests.support.recorded import Recorded

T = TypeVar("T")

CONTEXT = 96
CFG = ActingParams(mask_invalid=True, reflect_temperature=0.0, max_tokens=40)
BATCH = 4
MARKS = MARKERS["spaced"]
STARTS = 200
"""Number of distinct tasks, which are played repeatedly, like a training split."""
EPISODES, ORIGINAL_EPISODES = 800, 16
"""Concurrent episodes over all processes (one per thread); episodes played in batches of four by the original."""
SLOTS = 64
"""Slots of each engine in each process."""
ROUNDS = 2
EPOCHS = 8
"""Epochs of the warm start."""


def measure(*, threads: int) -> dict[str, Any]:
    """Episodes and tokens per second of each implementation in its best round, and the ratios between them.

    Returns:
        ``episodes_per_second``, ``tokens_per_second`` (read and drawn) by implementation; ``over_original``
        (episodes), ``of_engine`` (tokens); ``occupancy`` of the reflectors' slots; ``asked``: reflections generated per
        step; ``success``: share of our episodes; ``valid``: no share exceeds 1.0, since a measurement above the limit
        is wrong.
    """
    import torch

    from selfimprove.training.fork import run_forked

    torch.set_num_threads(threads)
    env = EnumeratedTaxi()
    tasks = list(env.task_ids())
    rng("bench", "reflect_rl").shuffle(tasks)
    games = [(tasks[place % STARTS], place) for place in range(EPISODES)]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        models = _taught(env, folder, threads)
        work = lambda tell: _ours_and_engine(models, env, games)  # noqa: E731
        ours, engine, metrics = run_forked(work, processes=threads, threads=1, folder=folder)
        runs = [_original(models, env, games[:ORIGINAL_EPISODES]) for _ in range(ROUNDS)]
        original = min(runs, key=lambda run: run.seconds)
    rates = {"ours": EPISODES / ours.seconds, "original": ORIGINAL_EPISODES / original.seconds}
    best = {"ours": ours, "engine": engine, "original": original}
    tokens = {name: run.tokens / run.seconds for name, run in best.items()}
    share = tokens["ours"] / tokens["engine"]
    return {
        "threads": threads,
        "episodes": EPISODES,
        "slots": SLOTS,
        "episodes_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "tokens_per_second": {name: round(rate, 1) for name, rate in tokens.items()},
        "over_original": round(rates["ours"] / rates["original"], 2),
        "of_engine": round(share, 4),
        **{name: round(metric, 4) for name, metric in metrics.items()},
        "valid": max(metrics.values()) <= 1.0,
    }


def _ours_and_engine(
    models: dict[str, Path], env: EnumeratedEnv, games: Sequence[tuple[int, int]]
) -> tuple[_Run, _Run, dict[str, float]]:
    """Run one process's share of the episodes, then of the bare requests; returns the best rounds of all processes."""
    import torch

    from selfimprove.methods.reflect_rl.rl_group import Group

    torch.set_num_threads(1)
    make = partial(engine_of, slots=SLOTS, context=CONTEXT, threads=1, prefill_rows=32)
    group = Group()
    mine = games[group.rank :: group.world]
    ours, engine = [], []
    metrics: dict[str, float] = {}
    for _ in range(ROUNDS):
        policy, reflector = (Recorded(make(models[name])) for name in ("policy", "reflector"))
        advice = RememberingEngine(reflector)
        one = lambda game: play(game[0], env, advice, policy, CFG, SeedKey(0, str(game[1])))  # noqa: B023, E731
        group.gather(None)  # all processes start together
        played, run = _timed([policy, reflector], play_all(mine, one, concurrency=len(mine)))
        ours.append(_together(group, run))
        steps = sum(len(episode.steps) for episode in played)
        metrics = {
            "occupancy": reflector.stats.busy_slot_steps / reflector.stats.slot_steps,
            "asked": reflector.stats.requests / steps,
            "success": sum(episode.success for episode in played) / len(mine),
        }
        bare = [make(models[name]) for name in ("reflector", "policy")]
        group.gather(None)
        halves = [
            _timed([one], answer_all(one, asked))[1]
            for one, asked in zip(bare, (reflector.asked, policy.asked), strict=True)
        ]
        total = _Run(sum(half.seconds for half in halves), sum(half.tokens for half in halves))
        engine.append(_together(group, total))
    best = [min(runs, key=lambda run: run.seconds) for runs in (ours, engine)]
    return best[0], best[1], metrics


def _together(group: Any, run: _Run) -> _Run:
    """The tokens of all processes, in the time of the slowest."""
    runs = group.gather(run)
    return _Run(max(one.seconds for one in runs), sum(one.tokens for one in runs))


def _taught(env: EnumeratedEnv, folder: Path, threads: int) -> dict[str, Path]:
    """A reflection model and a policy trained on the scripted teacher's episodes."""
    cfg = GenerateParams(tasks=60, negative_tasks=100, negatives=1, max_turns=20)
    tasks = list(env.task_ids())
    rng("bench", "warm start").shuffle(tasks)

    async def taught() -> list[Any]:
        made = [await teach(job, env, ScriptedTeacher(), cfg, 0) for job in teaching_tasks(tasks, cfg)]
        return [one for one in made if one is not None]

    trajectories = asyncio.run(taught())
    sets = convert(trajectories, env.instruction, MARKS)
    rows = texts(sets, trajectories, env.instruction, MARKS)
    return warm_started(
        folder, rows, TokenizerParams(vocab_size=560, phrases=True),
        {"reflector": sets["sft_reflection"], "policy": sets["sft_policy"]},
        length=256, positions=512, epochs=EPOCHS, threads=threads,
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    seconds: float
    tokens: int


def _timed(engines: Sequence[Any], work: Coroutine[Any, Any, T]) -> tuple[T, _Run]:
    """Await ``work``; returns its result, and the tokens that the engines read and drew in the meantime."""
    before, began = sum(map(_tokens, engines)), time.perf_counter()
    result = asyncio.run(work)
    return result, _Run(time.perf_counter() - began, sum(map(_tokens, engines)) - before)


def _tokens(engine: Any) -> int:
    stats: EngineStats = engine.stats
    return stats.prompt_tokens + stats.generated_tokens


def _original(models: dict[str, Path], env: EnumeratedEnv, games: Sequence[tuple[int, int]]) -> _Run:
    """Batches of four; at each step the reflections of all episodes, then the actions, each from the full prompt."""
    import torch

    from selfimprove.core.chat import ChatFormat
    from selfimprove.models.loading import load_causal_lm

    chat = ChatFormat.load(models["policy"])
    loaded = {name: load_causal_lm(folder) for name, folder in models.items()}
    labels = [chat.content_ids(Message(role="assistant", content=label))[0] for label in env.labels]
    torch.manual_seed(0)
    tokens = 0

    def generate(name: str, prompts: list[list[Message]], new: int, **options: Any) -> list[list[int]]:
        nonlocal tokens
        ids = [chat.encode(messages, add_generation_prompt=True).ids for messages in prompts]
        width = max(map(len, ids))
        rows = torch.tensor([[chat.pad_id] * (width - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
        with torch.inference_mode():
            out = loaded[name].generate(
                input_ids=rows, attention_mask=mask, max_new_tokens=new, pad_token_id=chat.pad_id,
                eos_token_id=sorted(chat.stop_ids), **options,
            )  # fmt: skip
        drawn = [[token for token in row if token != chat.pad_id] for row in out[:, width:].tolist()]
        tokens += sum(map(len, ids)) + sum(map(len, drawn))
        return drawn

    def only_labels(batch: int, sent: Any) -> list[int]:
        return labels

    began = time.perf_counter()
    for first in range(0, len(games), BATCH):
        batch = [(env.copy(), task) for task, _ in games[first : first + BATCH]]
        for one, task in batch:
            one.reset(task)
        alive = [one for one, _ in batch]
        for _ in range(env.max_turns):
            if not alive:
                break
            states = [one.state() for one in alive]
            said = generate(
                "reflector", [reflection_prompt(env.instruction, s, MARKS) for s in states], 40, do_sample=False
            )
            words = [cut_reflection(chat.decode(ids), MARKS) for ids in said]
            prompts = [policy_prompt(env.instruction, s, r, MARKS) for s, r in zip(states, words, strict=True)]
            acts = generate("policy", prompts, 1, do_sample=True, prefix_allowed_tokens_fn=only_labels)
            played = [one.step(chat.decode(ids)) for one, ids in zip(alive, acts, strict=True)]
            alive = [one for one, step in zip(alive, played, strict=True) if not step.done]
    return _Run(time.perf_counter() - began, tokens)


def show(result: dict[str, Any]) -> None:
    """Print a result of ``measure`` as a table."""
    title = f"Reflect-RL's episodes, {result['threads']} thread(s), {result['episodes']} at once"
    print_rates(title, "episodes", result["episodes_per_second"], result["tokens_per_second"])
    print(
        f"{result['over_original']} times the original's episodes/s; {result['of_engine']:.2f} of the engine's "
        f"tokens/s; {result['asked']:.2f} reflections written a step; {result['success']:.0%} succeed"
    )
