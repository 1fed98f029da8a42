"""vLLM on a CPU: several processes with one thread each, compared with one process with the same number of threads.

Both use a 3M-parameter model in float32 and generate the same short samples, in alternating rounds. The fastest round
of each counts, since other work on the machine only slows it down.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.factory import make_engine

SAMPLES, TOKENS, ROUNDS = 256, 64, 5
"""Concurrent requests per round, each with its own prompt; tokens per request; number of rounds."""


def measure(*, threads: int) -> dict[str, Any]:
    """Tokens per second of both variants.

    Args:
        threads: threads of the single process; also the number of one-thread replicas compared with it.

    Returns:
        ``tokens_per_second`` and ``rounds`` (the rate of each round, in order) by variant; ``replicas_over_one``: their
        ratio; ``same``: whether both generated the same texts in every round.
    """
    from tests.support.tiny import make_tiny_model

    with TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model", hidden=256, layers=4, heads=8, spread=0.05)
        engines = {"one process": _engine(model, 1, threads), f"{threads} replicas": _engine(model, threads, threads)}
        rates: dict[str, list[float]] = {name: [] for name in engines}
        same = True
        with asyncio.Runner() as runner:
            for number in range(ROUNDS + 1):  # the first round loads the models and does not count
                texts = []
                for name, engine in engines.items():
                    text, rate = runner.run(_round(engine, number))
                    texts.append(text)
                    if number:
                        rates[name].append(round(rate, 1))
                same = same and texts[0] == texts[1]
            for engine in engines.values():
                runner.run(engine.close())
    best = {name: max(rate) for name, rate in rates.items()}
    one, replicas = best.values()
    return {
        "threads": threads,
        "samples": SAMPLES,
        "max_tokens": TOKENS,
        "tokens_per_second": best,
        "rounds": rates,
        "replicas_over_one": round(replicas / one, 3),
        "same": same,
    }


def show(result: dict[str, Any]) -> None:
    """Print the table and ratio for a result of ``measure``."""
    from bench.rates import print_rates

    title = f"vLLM, {result['samples']} samples of {result['max_tokens']} tokens, {result['threads']} threads in all"
    print_rates(title, "samples", {}, result["tokens_per_second"])
    print(f"replicas / one process: {result['replicas_over_one']}")


def _engine(model: Path, replicas: int, threads: int) -> Engine:
    cfg = VllmEngineConfig(engine="vllm", replicas=replicas, context=256, dtype="float32", max_sequences=128)
    return make_engine(cfg, policy_dir=model, threads=threads, expert=None)


async def _round(engine: Engine, number: int) -> tuple[list[str], float]:
    """The texts of a round, and its tokens per second."""
    requests = [
        Request(
            [Message(role="user", content=f"Mia has {i} apples and buys {7 * i + number}. How many has she now?")],
            SeedKey(number, f"task {i}"),
            max_tokens=TOKENS,
        )
        for i in range(SAMPLES)
    ]
    began = time.perf_counter()
    answers = await asyncio.gather(*map(engine.generate, requests))
    seconds = time.perf_counter() - began
    return [answer.text for [answer] in answers], sum(len(answer.logprobs or []) for [answer] in answers) / seconds
