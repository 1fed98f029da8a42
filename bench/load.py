"""Throughput limit of a stage's process: 10,000 concurrent episodes over 64 simulated replicas, without a model.

The components of a stage run as usual: RISE's two-turn episodes, the journal, and the queue in front of the replicas. A
replica only waits as long as an H100 would decode (``RATE`` tokens/s) and answers with a fixed text. One process does
all the work, so its throughput per second of CPU time is the limit of a stage, however many GPUs answer.

Memory is measured in a separate process for each number of tasks: the growth between ``FEW`` and ``MANY`` tasks is the
cost of a finished task, excluding its text, which a real stage holds in memory. ``BENCH=load make bench`` prints a
table, and JSON on its last line.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from bench.rates import print_table
from selfimprove.core.journal import Journal
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.cluster.dispatch import Dispatcher, Replica, Share
from selfimprove.engines.episodes import play_all
from selfimprove.engines.journal import JournaledEngine
from selfimprove.envs.interface import Problem
from selfimprove.envs.math.gsm8k import Gsm8k
from selfimprove.methods.rise.collect import Play, collect
from selfimprove.methods.rise.params import GenerateParams

REPLICAS, SLOTS, TOKENS = 64, 256, 200
CONCURRENCY, FEW, MANY = 10_000, 10_000, 200_000
RATE = 2500.0
"""Tokens/s of a replica, as of an 8B model on an H100."""

TEXT = " ".join(f"{number} + {number + 1} = {2 * number + 1}." for number in range(28))
"""An answer of about ``TOKENS`` tokens."""


class Simulated(Dispatcher[Replica]):
    """Replicas that answer after ``seconds``."""

    def __init__(self, replicas: int, seconds: float) -> None:
        super().__init__(Share(SLOTS, SLOTS // 4, 4096), None)  # type: ignore[arg-type]  # nothing is encoded
        self._workers = [Replica() for _ in range(replicas)]
        self._took = seconds

    def fits(self, messages: Any, max_tokens: int) -> bool:
        return True

    async def close(self) -> None:
        self._cancel_all()

    def _listen(self) -> None:
        """Nothing to do: there are no messages from other processes."""

    def _rest(self) -> None:
        """Nothing to do: no resources are held."""

    def _post(self, worker: Replica, number: int, request: Request | None) -> None:
        if request is None:
            return
        assert self._loop is not None
        answer = [Completion(f"{TEXT} \\boxed{{{number}}}", "stop", [7] * TOKENS, [-0.5] * TOKENS)] * request.n
        self._loop.call_later(self._took, self._done, worker, number, answer)

    def _done(self, worker: Replica, number: int, answer: list[Completion]) -> None:
        worker.stats.requests += 1
        worker.stats.generated_tokens += TOKENS * len(answer)
        self._answered(worker, number, "done", answer)


class Problems(Sequence[Problem]):
    """A sequence of problems created on access, so that the measured memory excludes the tasks themselves."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        return Problem(f"p{index}", f"What is {index} + {index}? " * 4, f"#### {-index}", str(-index))


def play(tasks: int, concurrency: int, seconds: float) -> dict[str, float]:
    """Play ``tasks`` tasks in this process; returns the measurements."""
    cfg = GenerateParams.model_validate(
        {
            "tasks": tasks,
            "models": ["student", "student"],
            "max_turns": 2,
            "num_of_samples": [1, 1],
            "concurrency": concurrency,
        }
    )
    episode = Play(Gsm8k(), False, 17)
    with TemporaryDirectory() as folder, Journal(Path(folder) / "journal") as journal:
        inner = Simulated(REPLICAS, seconds)
        engines = {"student": JournaledEngine(inner, journal, "student")}

        async def run() -> None:
            await play_all(Problems(tasks), lambda one: collect(one, engines, episode, cfg), concurrency=concurrency)

        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(run())
        took, used = time.perf_counter() - began, time.process_time() - cpu
        size = journal.path.stat().st_size
        return {
            "tasks": tasks,
            "seconds": took,
            "cpu_share": used / took,
            "requests": inner.stats.requests,
            "requests_per_cpu_second": inner.stats.requests / used,
            "episodes_per_second": tasks / took,
            "journal_mb_per_second": size / took / 1e6,
            "journal_share": journal.seconds / took,
            "peak_mb": peak_mb(),
        }


def peak_mb() -> float:
    """Most memory that this process has held, in MiB; the system counts in KiB, that of macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def measure(**_: int) -> dict[str, Any]:
    """The limit of a stage's process, and its memory; a stage's own code has one thread.

    Returns:
        ``paced``: replicas as slow as real ones; ``flat_out``: replicas that answer at once; ``many``, ``idle``: for
        peak memory; ``limit_tokens_per_second``: total rate of all replicas at which this process is the bottleneck.
    """
    at_once = {"paced": SLOTS * TOKENS / RATE, "flat_out": 0.0}
    runs = {name: _apart(FEW, CONCURRENCY, seconds) for name, seconds in at_once.items()}
    runs["many"] = _apart(MANY, CONCURRENCY, 0.0)
    runs["idle"] = _apart(1, 1, 0.0)
    limit = runs["flat_out"]["requests_per_cpu_second"] * TOKENS
    held = (runs["many"]["peak_mb"] - runs["flat_out"]["peak_mb"]) / (MANY - FEW) * 1024
    waiting = (runs["flat_out"]["peak_mb"] - runs["idle"]["peak_mb"]) / CONCURRENCY * 1024
    return {
        **runs,
        "concurrency": CONCURRENCY,
        "replicas": REPLICAS,
        "limit_tokens_per_second": limit,
        "of_64_h100": limit / (REPLICAS * RATE),
        "kb_per_task": held,
        "kb_per_waiting_episode": waiting,
        "valid": all(run["cpu_share"] <= 1.02 for run in runs.values()),
    }


def _apart(tasks: int, concurrency: int, seconds: float) -> dict[str, float]:
    """Run ``play`` in a new process, so that peak memory is measured separately."""
    command = [sys.executable, "-m", "bench.load", str(tasks), str(concurrency), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(result: dict[str, Any]) -> None:
    """Print the table and ratios for a result of ``measure``."""
    columns = ("run", "tasks", "episodes/s", "CPU", "journal MB/s", "journal's time", "peak MB")
    rows = [
        (
            name, f"{run['tasks']:,}", f"{run['episodes_per_second']:,.0f}", f"{run['cpu_share']:.0%}",
            f"{run['journal_mb_per_second']:.1f}", f"{run['journal_share']:.0%}", f"{run['peak_mb']:,.0f}",
        )
        for name, run in result.items()
        if isinstance(run, dict)
    ]  # fmt: skip
    print_table(f"{result['concurrency']:,} episodes at once over {result['replicas']} replicas", columns, rows)
    print(
        f"a stage's process answers for {result['limit_tokens_per_second']:,.0f} tokens/s, "
        f"{result['of_64_h100']:.1f} times what {REPLICAS} replicas of {RATE:,.0f} tokens/s write; "
        f"{result['kb_per_waiting_episode']:.1f} KB a waiting episode, {result['kb_per_task']:.1f} KB a finished one"
    )


if __name__ == "__main__":
    print(json.dumps(play(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
