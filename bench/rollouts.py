"""Rollout throughput: hundreds of concurrent episodes, compared with the best that the same model can achieve.

The measured variant, ``rollout``, is what a stage does: RISE's collection of two-turn episodes, all concurrent, over
the journaled engine, with one replica per thread. It is compared with:

- ``raw``: the bare engine, given the requests of these episodes all at once, at its best number of slots;
- ``one at a time``: the engine with a single slot in one process with all threads, one episode after another;
- ``limit``: a hand-written static-cache loop over the library's model, in which all rows have the same (mean) lengths,
  start together, keep their keys and values between turns and attend to nothing else; no row ever waits, ends early or
  reads a token twice;
- ``lockstep``: the same loop over the requests that the engine gets, so the second turn reads its whole prompt again;
- ``generate``: ``model.generate`` over whole batches, the simplest solution with the library alone; with a batch of
  one, this is the released code's order of work.

The last three also run in one process per thread. Tokens are the completions' tokens; times include reading the
prompts. The variants are timed in turn for several rounds, and the best round of each counts.
``BENCH=rollouts make bench`` prints a table, and JSON on its last line.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.rates import print_table
from bench.warm import engine_of
from selfimprove.core.journal import Journal
from selfimprove.core.records import Episode, Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Around, Completion, Engine, Request
from selfimprove.engines.episodes import play_all
from selfimprove.engines.journal import JournaledEngine
from selfimprove.envs.interface import Problem
from selfimprove.envs.math.gsm8k import Gsm8k
from selfimprove.methods.rise.collect import Play, collect
from selfimprove.methods.rise.params import GenerateParams
from selfimprove.methods.rise.prompts import feedback, opening

SHORTEST, LONGEST = 24, 72
NOISE = 0.05
"""Timing noise: the rollouts may appear faster than the bare engine by at most this fraction."""
CONTEXT = 352

Lengths = tuple[int, int, int, int]
"""Numbers of tokens: opening prompt, first completion, feedback, second completion."""

_held: dict[str, Any] = {}
"""State of a process that runs the library's variants: model, forward, chat format, barrier."""


def measure(
    model_dir: Path | None = None,
    *,
    episodes: int = 640,
    slots: int = 64,
    batches: tuple[int, ...] = (32, 64, 128),
    rounds: int = 3,
    threads: int = 1,
) -> dict[str, Any]:
    """Tokens per second of each variant, and the ratios between them.

    Args:
        model_dir: a model folder; None builds a random Llama (0.8M parameters), whose completions never end early.
        episodes: number of concurrent episodes.
        slots: slots of the engine per thread.
        batches: batch sizes per thread that the batched variants and the raw engine try; the best one counts.
        rounds: number of timings per variant.
        threads: CPU threads of each variant.

    Returns:
        ``tokens_per_second`` by variant; ``of_raw_engine``, ``of_limit``, ``of_lockstep``, ``of_generate``,
        ``over_one_at_a_time`` (our engine), ``over_library_one_at_a_time`` (``model.generate``): the rollouts' rate
        over each (the first two cannot exceed 1.0, except the first by ``NOISE``);
        ``generate_of_limit``; ``occupancy`` (all steps) and ``occupancy_until_tail`` (until 90 % of the episodes are
        done), both shares of busy slots; ``valid``: whether no share exceeds 1.0, since a measurement above the limit
        is wrong.
    """
    import torch

    torch.set_num_threads(threads)
    with TemporaryDirectory() as scratch:
        if model_dir is None:
            from tests.support.tiny import make_tiny_model

            model_dir = make_tiny_model(Path(scratch), hidden=128, layers=3, heads=4)
        make = partial(_Rollouts, model_dir, threads=threads)
        many, single = make(slots=slots), make(slots=1, replicas=1)
        flat_out = {size: many if size == slots else make(slots=size) for size in sorted({*batches, slots})}
        few, some = range(max(2, episodes // 80)), range(min(episodes, max(batches)))
        many.play(range(episodes))  # which also records the requests for the raw engine
        requests = list(many.asked)
        lengths = many.typical_lengths(episodes)
        single.play(few[:2])
        with _team(model_dir, threads) as pool, _team(model_dir, 1) as alone:
            ways: dict[str, Callable[[], tuple[int, float]]] = {"rollout": lambda: many.play(range(episodes))}
            for size, engine in flat_out.items():
                ways[f"raw {size}"] = partial(engine.raw, requests)
            ways["one at a time"] = lambda: single.play(few, at_once=1)
            ways["library one at a time"] = partial(_together, alone, 1, _generate, 1, few)
            for batch in batches:
                ways[f"limit {batch}"] = partial(_together, pool, threads, _lockstep, batch, lengths, True)
                ways[f"lockstep {batch}"] = partial(_together, pool, threads, _lockstep, batch, lengths, False)
                ways[f"generate {batch}"] = partial(_together, pool, threads, _generate, batch, some)
            rates = dict.fromkeys(ways, 0.0)
            occupancy, until_tail = 0.0, 0.0
            for _ in range(rounds):
                for name, way in ways.items():
                    tokens, seconds = way()
                    rates[name] = max(rates[name], tokens / seconds)
                    if name == "rollout":
                        occupancy, until_tail = many.occupancy()
        for engine in {many, single, *flat_out.values()}:
            asyncio.run(engine.engine.close())
    best = {
        name: max(r for way, r in rates.items() if way.rpartition(" ")[0] == name)
        for name in ("raw", "limit", "lockstep", "generate")
    }
    rate = rates["rollout"]
    of_raw, of_limit = rate / best["raw"], rate / best["limit"]
    return {
        "threads": threads,
        "episodes": episodes,
        "slots": slots * threads,
        "lengths": dict(zip(("prompt", "first", "feedback", "second"), lengths, strict=True)),
        "tokens_per_second": {name: round(rate, 1) for name, rate in (rates | best).items()},
        "of_raw_engine": round(of_raw, 4),
        "of_limit": round(of_limit, 4),
        "of_lockstep": round(rate / best["lockstep"], 4),
        "of_generate": round(rate / best["generate"], 4),
        "generate_of_limit": round(best["generate"] / best["limit"], 4),
        "over_one_at_a_time": round(rate / rates["one at a time"], 2),
        "over_library_one_at_a_time": round(rate / rates["library one at a time"], 2),
        "occupancy": round(occupancy, 4),
        "occupancy_until_tail": round(until_tail, 4),
        "valid": max(of_limit, occupancy, until_tail) <= 1.0 and of_raw <= 1 + NOISE,
    }


def problem(episode: int) -> Problem:
    draw = rng("bench", episode)
    bought, lost = draw.randint(2, 99), draw.randint(2, 99)
    question = f"Mia has {draw.randint(99, 999)} apples and buys {bought} more, then {lost} are lost. How many remain?"
    return Problem(f"bench{episode}", question, "#### 0", "0")


def length(seed: SeedKey) -> int:
    """The maximum length of a completion, drawn from its seed key."""
    return rng("bench", seed.task, seed.turn).randint(SHORTEST, LONGEST)


class _Varied(Around):
    """Limits completions to various lengths, because a random model never ends them; records the requests."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> list[Completion]:
        varied = replace(request, max_tokens=length(request.seed))
        self.asked.append(varied)
        return await self._inner.generate(varied)


class _Rollouts:
    """An engine, on which to play episodes or to replay their requests without episodes."""

    def __init__(self, folder: Path, *, slots: int, threads: int, replicas: int | None = None) -> None:
        count = replicas or threads
        rows = min(16, slots)
        self.engine = engine_of(
            folder, slots=slots * count, replicas=count, context=CONTEXT, threads=threads, prefill_rows=rows
        )
        self.asked: list[Request] = []
        self._tail: tuple[int, int] | None = None
        self._before = (0, 0)

    def play(self, episodes: range, at_once: int | None = None) -> tuple[int, float]:
        """Collect episodes as a stage does; returns the number of completion tokens and the seconds taken."""
        stats = self.engine.stats
        self._before, self._tail = (stats.busy_slot_steps, stats.slot_steps), None
        self.engine.forget_prefixes()
        with TemporaryDirectory() as scratch, Journal(Path(scratch) / "journal") as journal:
            began = time.perf_counter()
            played = asyncio.run(self._collect(episodes, at_once or len(episodes), journal))
            seconds = time.perf_counter() - began
        return sum(len(turn.attempt.token_ids or ()) for episode in played for turn in episode.turns), seconds

    async def _collect(self, episodes: range, at_once: int, journal: Journal) -> list[Episode]:
        varied = _Varied(self.engine)
        self.asked = varied.asked
        engines: dict[str, Engine] = {"student": JournaledEngine(varied, journal, "student")}
        cfg = GenerateParams(
            tasks=len(episodes),
            max_turns=2,
            models=["student"] * 2,
            num_of_samples=[1, 1],
            max_tokens=LONGEST,
            resamples=0,
        )
        play, done = Play(Gsm8k(), False, 0), 0

        async def one(episode: int) -> Episode:
            nonlocal done
            result = await collect(problem(episode), engines, play, cfg)
            done += 1
            if self._tail is None and done >= 0.9 * len(episodes):
                stats = self.engine.stats
                self._tail = (stats.busy_slot_steps, stats.slot_steps)
            return result

        return list(await play_all(list(episodes), one, concurrency=at_once))

    def raw(self, requests: list[Request]) -> tuple[int, float]:
        """Submit all requests at once, first turns first."""

        async def everything() -> int:
            ordered = sorted(requests, key=lambda request: request.seed.turn)
            answers = await asyncio.gather(*(self.engine.generate(request) for request in ordered))
            return sum(len(completion.token_ids or ()) for answer in answers for completion in answer)

        self.engine.forget_prefixes()
        began = time.perf_counter()
        tokens = asyncio.run(everything())
        return tokens, time.perf_counter() - began

    def typical_lengths(self, episodes: int) -> Lengths:
        """Mean lengths of the four parts, rounded down."""
        problems = [problem(episode) for episode in range(episodes)]
        starts = [opening(p.question, few_shot=False) for p in problems]
        empty = Message(role="assistant", content="", token_ids=[])
        thens = [
            [*start, empty, Message(role="user", content=feedback(0, p.question))]
            for start, p in zip(starts, problems, strict=True)
        ]
        prompts, more = (sum(map(self.engine.prompt_tokens, dialogues)) // episodes for dialogues in (starts, thens))
        first, second = (sum(length(SeedKey(0, p.id, turn)) for p in problems) // episodes for turn in range(2))
        return prompts, first, more - prompts, second

    def occupancy(self) -> tuple[float, float]:
        """Share of busy slots in the last ``play``: overall, and until 90 % of its episodes were done."""
        stats = self.engine.stats
        assert self._tail is not None
        whole, tail = (
            (busy - self._before[0]) / (steps - self._before[1])
            for busy, steps in ((stats.busy_slot_steps, stats.slot_steps), self._tail)
        )
        return whole, tail


def _team(folder: Path, processes: int) -> ProcessPoolExecutor:
    """A pool of processes with one thread each, synchronised by a barrier."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, _join, (folder, context.Barrier(processes)))


def _join(folder: Path, barrier: Any) -> None:
    import torch

    from selfimprove.core.chat import ChatFormat
    from selfimprove.engines.cpu.decoder import Module
    from selfimprove.engines.cpu.llama import Llama
    from selfimprove.models.loading import load_causal_lm

    torch.set_num_threads(1)
    model = load_causal_lm(folder)
    forward = Llama.of(load_causal_lm(folder), CONTEXT) or Module(load_causal_lm(folder))
    _held.update(model=model, forward=forward, chat=ChatFormat.load(folder), barrier=barrier)


def _together(pool: ProcessPoolExecutor, processes: int, way: Callable[..., int], *arguments: Any) -> tuple[int, float]:
    """Run the same work in every process simultaneously; returns all tokens, and the seconds until the last is done."""
    futures = [pool.submit(_timed, way, *arguments) for _ in range(processes)]
    done = [future.result() for future in futures]
    return sum(tokens for tokens, _, _ in done), max(end for _, _, end in done) - min(start for _, start, _ in done)


def _timed(way: Callable[..., int], *arguments: Any) -> tuple[int, float, float]:
    _held["barrier"].wait()
    began = time.monotonic()
    return way(*arguments), began, time.monotonic()


def _lockstep(batch: int, lengths: Lengths, keep: bool) -> int:
    """Rows of equal lengths over the engine's own kernels; greedy, which is the cheapest way to choose tokens.

    ``keep``: the second turn reads only the feedback; otherwise its whole prompt.
    """
    import torch

    from selfimprove.engines.cpu.slots import Rows, cache_shape

    prompt, first, more, second = lengths
    model, forward, total = _held["model"], _held["forward"], sum(lengths)
    weight = model.get_input_embeddings().weight
    with torch.inference_mode():
        rows, columns = Rows(cache_shape(model), batch, total, weight.device), torch.arange(total)
        start = 0
        for read, written in ((prompt - 1, first), (more if keep else prompt + first + more - 1, second)):
            start = start if keep else 0
            at = torch.arange(start, start + read).expand(batch, read)
            ids = torch.arange(batch * (read + 1)).view(batch, -1) % len(weight)
            rows.aim(at, start + read)
            forward.read(rows, ids[:, :-1], at, columns[: start + read] <= at[..., None])
            fed, start = ids[:, -1:], start + read
            for place in range(start, start + written):
                at = columns[place].expand(batch, 1)
                rows.aim(at, place + 1)
                fed = forward.step(rows, fed, at, columns[: place + 1] <= at[..., None]).argmax(-1, keepdim=True)
            start += written
    return batch * (first + second)


def _generate(batch: int, episodes: range) -> int:
    """``model.generate`` on one batch of left-padded prompts at a time; each batch runs until its longest row ends."""
    import torch

    chat, model = _held["chat"], _held["model"]
    tokens = 0
    torch.manual_seed(0)
    for start in range(0, len(episodes), batch):
        problems = [problem(episode) for episode in episodes[start : start + batch]]
        dialogues = [opening(p.question, few_shot=False) for p in problems]
        for turn in range(2):
            prompts = [chat.encode(m, add_generation_prompt=True).ids for m in dialogues]
            limits = [length(SeedKey(0, p.id, turn)) for p in problems]
            width = max(map(len, prompts))
            ids = torch.tensor([[chat.pad_id] * (width - len(p)) + p for p in prompts])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=max(limits),
                    do_sample=True,
                    top_k=0,
                    pad_token_id=chat.pad_id,
                )
            for row, limit in enumerate(limits):
                drawn = out[row, width : width + limit].tolist()
                ends = [at for at, token in enumerate(drawn) if token in chat.stop_ids]
                drawn = drawn[: ends[0]] if ends else drawn
                tokens += len(drawn)
                answer = Message(role="assistant", content=chat.decode(drawn), token_ids=drawn)
                again = Message(role="user", content=feedback(0, problems[row].question))
                dialogues[row] = [*dialogues[row], answer, again]
    return tokens


def show(result: dict[str, Any]) -> None:
    """Print the table for a result of ``measure``."""
    rates = result["tokens_per_second"]
    rows = [(name, f"{rate:,.0f}", f"{rates['rollout'] / rate:.2f} x") for name, rate in rates.items()]
    title = f"Rollouts, {result['threads']} thread(s), {result['episodes']} two-turn episodes"
    print_table(title, ("way", "tokens/s", "rollout is"), rows)
