"""Engine replicas in several processes: the same completions, one error for all callers, no process left running."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError, Request
from selfimprove.engines.cluster import replicas
from selfimprove.engines.cluster.replicas import ReplicatedEngine, replicated_transformers
from selfimprove.engines.config import EngineConfig, TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.pipeline.params import load_section

SETTINGS = {"engine": "transformers", "context": 192, "prefill_rows": 4, "prefill_block": 16}


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ReplicatedEngine]:
    engine = replicated(folder)
    yield engine
    asyncio.run(engine.close())


def config(**changes: object) -> TransformersEngineConfig:
    return TransformersEngineConfig.model_validate(SETTINGS | changes)


def replicated(folder: Path, start: str = "fork", **changes: object) -> ReplicatedEngine:
    """Two workers with 8 slots and one thread each. Forking is safe: with one thread, torch has no thread pool."""
    return replicated_transformers(config(**{"replicas": 2, "slots": 16} | changes), folder, threads=2, start=start)


def ask(index: int, **changes: object) -> Request:
    question = Message(role="user", content=f"Mia has {index} apples and buys {7 * index}. How many has she now?")
    settings = {"seed": SeedKey(run=1, task=f"t{index % 13}", turn=index), "max_tokens": 12 + index % 9}
    return Request(messages=[question], **(settings | changes))  # type: ignore[arg-type]


async def all_of(engine: TransformersEngine | ReplicatedEngine, requests: list[Request]) -> list[list[Completion]]:
    return await asyncio.gather(*(engine.generate(request) for request in requests))


def processes(engine: ReplicatedEngine) -> list[psutil.Process]:
    return [psutil.Process(worker.process.pid) for worker in engine._workers]


# --- the same completions --------------------------------------------------------------------------------------------


def test_two_replicas_give_the_bits_of_one_engine_with_the_slots_and_threads_of_a_worker(
    folder: Path, engine: ReplicatedEngine
) -> None:
    requests = [ask(i, n=1 + i % 3, top_p=(1.0, 0.9)[i % 2]) for i in range(60)]
    expected = asyncio.run(all_of(TransformersEngine(config(slots=8), folder, threads=1), requests))
    assert asyncio.run(all_of(engine, requests)) == expected
    # In reverse order, requests reach other workers.
    assert asyncio.run(all_of(engine, requests[::-1])) == expected[::-1]
    assert all(worker.stats.completions > 0 for worker in engine._workers)


def test_two_replicas_give_the_tokens_of_one_engine_with_all_slots(folder: Path, engine: ReplicatedEngine) -> None:
    requests = [ask(i) for i in range(40)]
    whole = asyncio.run(all_of(TransformersEngine(config(slots=16), folder, threads=1), requests))
    parts = asyncio.run(all_of(engine, requests))
    assert [[(c.text, c.token_ids, c.finish) for c in cs] for cs in parts] == [
        [(c.text, c.token_ids, c.finish) for c in cs] for cs in whole
    ]


@pytest.mark.slow
def test_a_spawned_worker_gives_the_bits_of_forked_workers(folder: Path, engine: ReplicatedEngine) -> None:
    requests = [ask(i) for i in range(10)]

    async def once() -> list[list[Completion]]:
        fresh = replicated(folder, start="spawn", replicas=1, slots=8)
        try:
            return await all_of(fresh, requests)
        finally:
            await fresh.close()

    assert asyncio.run(once()) == asyncio.run(all_of(engine, requests))


def test_where_forks_are_not_possible_workers_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS (``core.forking``)."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(replicas, "START", "spawn")
    assert replicas._start_method() == "spawn"


# --- callers see one engine -------------------------------------------------------------------------------------------


def test_stats_add_up_the_workers_and_occupancy_is_at_most_1(folder: Path) -> None:
    async def count() -> tuple[ReplicatedEngine, float]:
        engine = replicated(folder)
        began = time.perf_counter()
        await all_of(engine, [ask(i) for i in range(120)])
        await asyncio.sleep(0.05)
        await engine.close()
        return engine, time.perf_counter() - began

    engine, seconds = asyncio.run(count())
    stats = engine.stats
    assert (stats.requests, stats.completions) == (120, 120)
    assert stats.generated_tokens == stats.busy_slot_steps
    assert 0.5 < stats.busy_slot_steps / stats.slot_steps <= 1.0
    assert 0 < stats.prefill_blocks <= stats.prefill_block_slots
    assert 0 < stats.seconds < seconds - 0.05  # wall-clock time with waiting calls: no idle time, no sum


def test_a_task_stays_with_its_worker_and_reuses_its_cached_prefixes(folder: Path) -> None:
    async def turns() -> ReplicatedEngine:
        engine = replicated(folder)
        for _ in range(3):
            await all_of(engine, [ask(i) for i in range(6)])
        await engine.close()
        return engine

    stats = asyncio.run(turns()).stats
    alone = TransformersEngine(config(slots=16), folder, threads=1)
    for _ in range(3):
        asyncio.run(all_of(alone, [ask(i) for i in range(6)]))
    # Blocks shared by all prompts are prefilled once per worker; otherwise as many are reused as in one process.
    assert stats.cached_prompt_tokens >= alone.stats.cached_prompt_tokens - 32


def test_requests_of_one_task_also_use_free_slots_of_other_workers(folder: Path) -> None:
    async def one_task() -> ReplicatedEngine:
        engine = replicated(folder)
        await all_of(engine, [ask(1, seed=SeedKey(1, "t", turn=i)) for i in range(16)])
        await engine.close()
        return engine

    assert [worker.stats.completions for worker in asyncio.run(one_task())._workers] == [8, 8]


def test_fits_and_refusals_are_those_of_a_single_engine(folder: Path, engine: ReplicatedEngine) -> None:
    alone = TransformersEngine(config(slots=8), folder, threads=1)
    for text in ("short", "a long way " * 14):
        messages = [Message(role="user", content=text)]
        for room in (8, 100, 170):
            assert engine.fits(messages, room) == alone.fits(messages, room)

    async def both() -> list[object]:
        bad = ask(1, max_tokens=500)
        return await asyncio.gather(engine.generate(bad), engine.generate(ask(2)), return_exceptions=True)  # type: ignore[return-value]

    bad, good = asyncio.run(both())
    assert isinstance(bad, EngineError)
    assert "context of 192" in str(bad)
    assert isinstance(good, list)


def test_a_cancelled_call_frees_its_slots_and_affects_no_other_call(engine: ReplicatedEngine) -> None:
    async def cancel_some() -> list[list[Completion]]:
        doomed = [asyncio.ensure_future(engine.generate(ask(i, n=40, max_tokens=100))) for i in range(8)]
        others = asyncio.ensure_future(all_of(engine, [ask(i) for i in range(10)]))
        await asyncio.sleep(0.05)
        for call in doomed:
            call.cancel()
        result = await others
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*doomed, return_exceptions=True))
        return result

    expected = asyncio.run(all_of(engine, [ask(i) for i in range(10)]))
    assert asyncio.run(cancel_some()) == expected
    assert asyncio.run(all_of(engine, [ask(i) for i in range(10)])) == expected
    assert [worker.load for worker in engine._workers] == [0, 0]


def test_close_cancels_waiting_calls_and_ends_the_workers(folder: Path) -> None:
    async def close_early() -> list[psutil.Process]:
        engine = replicated(folder)
        running = processes(engine)
        call = asyncio.ensure_future(engine.generate(ask(1, n=30, max_tokens=100)))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(asyncio.CancelledError):
            await call
        return running

    assert not any(process.is_running() for process in asyncio.run(close_early()))


# --- errors and deaths -----------------------------------------------------------------------------------------------


def test_the_death_of_a_worker_gives_every_caller_the_same_error(folder: Path) -> None:
    async def kill_one() -> list[object]:
        engine = replicated(folder)
        calls = [asyncio.ensure_future(engine.generate(ask(i, n=20, max_tokens=100))) for i in range(30)]
        await asyncio.sleep(0.05)
        processes(engine)[1].kill()
        errors: list[object] = await asyncio.gather(*calls, return_exceptions=True)
        later = await asyncio.gather(engine.generate(ask(1)), return_exceptions=True)
        await engine.close()
        return [*errors, *later]

    errors = asyncio.run(kill_one())
    assert len(errors) == 31
    assert all(isinstance(error, UserError) for error in errors)
    (sentence,) = {str(error) for error in errors}
    assert "worker process 2 of 2 was killed by signal 9" in sentence
    assert "lower slots or replicas" in sentence


def test_a_model_that_does_not_load_raises_the_error_of_the_engine(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[: 100 if file.suffix == ".safetensors" else None])
    with pytest.raises(UserError, match="cannot be loaded"):
        replicated(broken)


def test_workers_do_not_outlive_a_killed_parent(folder: Path) -> None:
    ours, theirs = multiprocessing.Pipe()

    async def work() -> None:
        engine = replicated(folder)
        if os.fork() == 0:  # an unrelated process that holds copies of the connections
            time.sleep(60)
            os._exit(0)
        theirs.send([worker.process.pid for worker in engine._workers])
        await all_of(engine, [ask(i, n=100, max_tokens=150) for i in range(100)])

    def parent() -> None:
        os.setsid()
        asyncio.run(work())

    process = multiprocessing.get_context("fork").Process(target=parent)
    process.start()
    try:
        assert ours.poll(20)
        workers = [psutil.Process(pid) for pid in ours.recv()]
        assert all(worker.is_running() for worker in workers)
        process.kill()
        assert not psutil.wait_procs(workers, timeout=20)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


# --- params ----------------------------------------------------------------------------------------------------------


class _Student(Section):
    student: EngineConfig


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda", "replicas": 2}, "works only with device: cpu"),
        ({"replicas": 3, "slots": 2}, "exceeds slots 2"),
    ],
)
def test_invalid_replicas_are_refused_when_params_are_loaded(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_section({"rise": {"student": SETTINGS | changes}}, "rise", _Student, "params.yaml")
    assert "rise.student" in str(caught.value)


@pytest.mark.slow
def test_the_factory_creates_replicas_in_a_fresh_process(folder: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from selfimprove.engines.base import Request\n"
        "from selfimprove.engines.config import TransformersEngineConfig\n"
        "from selfimprove.engines.factory import make_engine\n"
        "from selfimprove.core.records import Message\nfrom selfimprove.core.seeds import SeedKey\n"
        "assert 'torch' not in sys.modules\n"
        "cfg = TransformersEngineConfig(engine='transformers', replicas=2, slots=4, context=64)\n"
        "engine = make_engine(cfg, policy_dir=Path(sys.argv[1]), threads=2, expert=None)\n"
        "request = Request([Message(role='user', content='2 + 2?')], SeedKey(0, 't'), n=4, max_tokens=4)\n"
        "print(type(engine).__name__, len(asyncio.run(engine.generate(request))))\n"
        "asyncio.run(engine.close())\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # as in a stage with two threads
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.stdout.split() == ["ReplicatedEngine", "4"], done.stderr


def test_bursts_of_long_answers_to_long_prompts_do_not_deadlock_a_connection() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.cluster.burst"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "answered\n"
