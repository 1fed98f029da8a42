"""Two vLLM processes on a CPU: the completions of one, an error message if one is killed, and no repeated requests."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.engines.base import Completion, EngineStats, Request
from selfimprove.engines.pool import open_engines
from selfimprove.engines.vllm.engine import VllmEngine
from tests.backends.vllm_asking import ask, config, run, together

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

REQUESTS = [ask(f"task {i % 7}", sample=10 * i, n=1 + i % 2, max_tokens=60) for i in range(40)]


def workers() -> list[psutil.Process]:
    """The engines' processes, without the resource tracker that spawning also starts."""
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


async def stage(
    folder: Path, journal_file: Path, requests: list[Request], *, kill_after: int | None = None
) -> tuple[list[list[Completion]], EngineStats]:
    """Send all requests at once, as a stage does. After ``kill_after`` answers, one worker gets SIGKILL."""
    answered = 0
    with Journal(journal_file) as journal:
        async with open_engines(
            {"student": config(replicas=2)}, {"student": folder}, threads=2, journal=journal
        ) as engines:

            async def one(request: Request) -> list[Completion]:
                nonlocal answered
                completions = await engines["student"].generate(request)
                answered += 1
                if answered == kill_after:
                    os.kill(workers()[1].pid, signal.SIGKILL)
                return completions

            completions = await asyncio.gather(*map(one, requests))
            return completions, engines["student"].stats


def test_two_processes_give_the_completions_of_one_and_a_kill_loses_only_unfinished_requests(
    engine: VllmEngine, vllm_dir: Path, tmp_path: Path
) -> None:
    before = set(workers())
    journal = tmp_path / "journal"
    expected = together(engine, *REQUESTS)

    with pytest.raises(UserError) as caught:
        run(stage(vllm_dir, journal, REQUESTS, kill_after=10))
    assert "engine vllm: worker process 2 of 2 was killed by signal 9" in str(caught.value)
    assert "finished work is kept" in str(caught.value)
    assert set(workers()) == before, "no worker is left"

    with Journal(journal) as finished:
        done = len(finished)
    assert 10 <= done < len(REQUESTS)
    completions, stats = run(stage(vllm_dir, journal, REQUESTS))
    assert stats.requests == len(REQUESTS) - done, "only the rest is asked"
    assert [[(c.text, c.finish, c.token_ids) for c in cs] for cs in completions] == [
        [(c.text, c.finish, c.token_ids) for c in cs] for cs in expected
    ]
    assert [c.logprobs for cs in completions for c in cs] == [
        pytest.approx(c.logprobs, abs=1e-4) for cs in expected for c in cs
    ]
    again, stats = run(stage(vllm_dir, journal, REQUESTS))
    assert again == completions
    assert stats.requests == 0
    assert set(workers()) == before, "a journal that answers everything starts no engine"
