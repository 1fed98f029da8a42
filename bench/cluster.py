"""Overhead of Ray: the engine's replicas as actors on this machine, compared with the same replicas as forks.

Both answer the same requests, all concurrent, and generate the same texts.
``BENCH=cluster .venvs/ray/bin/python -m bench`` prints a table, and JSON on its last line.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.rates import answer_all, print_table
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine

SLOTS = 32
"""Slots of each replica."""
REQUESTS, ROUNDS = 2000, 3


def measure(*, threads: int) -> dict[str, Any]:
    """Requests per second of each variant in its best round.

    Returns:
        ``requests_per_second`` by variant; ``overhead_ms``: time per request added by Ray, with one replica per
        thread; ``efficiency``: throughput of these replicas on Ray over that of one, divided by their number.
    """
    asked = [
        Request([Message(role="user", content=f"What is {i} + {i}?")], SeedKey(1, f"t{i}"), max_tokens=16)
        for i in range(REQUESTS)
    ]
    rates: dict[str, float] = {}
    with TemporaryDirectory() as scratch:
        from tests.support.tiny import make_tiny_model

        folder = make_tiny_model(Path(scratch) / "model", heads=4)
        ways = {"forks": (threads, NO_CLUSTER), "ray": (threads, ClusterParams(kind="ray", address="local"))}
        if threads > 1:
            ways["ray, 1 replica"] = (threads, ClusterParams(kind="ray", address="local", replicas=1))
        for _ in range(ROUNDS):
            for name, (replicas, cluster) in ways.items():
                cfg = TransformersEngineConfig(
                    engine="transformers", replicas=replicas, slots=SLOTS * replicas, context=128
                )
                engine = make_engine(cfg, policy_dir=folder, threads=threads, expert=None, cluster=cluster)
                rates[name] = max(rates.get(name, 0.0), asyncio.run(_rate(engine, asked, replicas, cluster)))
    single = rates.get("ray, 1 replica", rates["ray"])
    return {
        "threads": threads,
        "requests": REQUESTS,
        "requests_per_second": rates,
        "overhead_ms": 1000 * (1 / rates["ray"] - 1 / rates["forks"]),
        "efficiency": rates["ray"] / single / threads,
    }


async def _rate(engine: Engine, asked: list[Request], replicas: int, cluster: ClusterParams) -> float:
    wanted = min(replicas, cluster.replicas or replicas)
    while len(engine._workers) < wanted:  # type: ignore[attr-defined]  # until every replica has loaded the model
        await engine.generate(asked[0])
        await asyncio.sleep(0.2)
    began = time.perf_counter()
    await answer_all(engine, asked)
    took = time.perf_counter() - began
    await engine.close()
    return len(asked) / took


def show(result: dict[str, Any]) -> None:
    """Print the table and ratios for a result of ``measure``."""
    rows = [(name, f"{rate:,.0f}") for name, rate in result["requests_per_second"].items()]
    print_table(f"{result['requests']:,} requests at once", ("way", "requests/s"), rows)
    print(f"Ray adds {result['overhead_ms']:.2f} ms a request; efficiency of the replicas {result['efficiency']:.0%}")
