"""Worker processes with any engine: their own environment, child processes, and termination with the stage."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Request
from selfimprove.engines.cluster.dispatch import Share
from selfimprove.engines.cluster.replicas import ReplicatedEngine
from selfimprove.engines.cluster.worker import WorkerSpec, start_worker
from selfimprove.engines.scripted import ScriptedEngine


def replicated(specs: list[WorkerSpec], chat: ChatFormat) -> ReplicatedEngine:
    return ReplicatedEngine(specs, Share(slots=1, ahead=1, context=64), chat, name="vllm", remedy="replicas")


def tells(variable: str) -> ScriptedEngine:
    """An engine that answers with an environment variable of its process."""
    return ScriptedEngine(lambda request, index: os.environ.get(variable, ""))


def with_child() -> ScriptedEngine:
    """An engine that starts a process, as vLLM does for each GPU of a model."""
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    return ScriptedEngine(lambda request, index: str(process.exitcode))


def loads_forever() -> ScriptedEngine:
    threading.Event().wait()
    raise AssertionError


def dies() -> ScriptedEngine:
    os._exit(3)


def test_each_worker_has_its_own_environment(chat: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")

    async def work() -> set[str]:
        specs = [
            WorkerSpec(partial(tells, "CUDA_VISIBLE_DEVICES"), {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in ("2", "5")
        ]
        engine = replicated(specs, chat)
        requests = [Request([Message(role="user", content="?")], SeedKey(1, f"t{i}")) for i in range(12)]
        answers = await asyncio.gather(*map(engine.generate, requests))
        await engine.close()
        return {completion.text for [completion] in answers}

    assert asyncio.run(work()) == {"2", "5"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,5"


def test_an_engine_that_starts_processes_can_run_in_a_worker(chat: ChatFormat) -> None:
    async def work() -> str:
        engine = replicated([WorkerSpec(with_child, has_children=True)], chat)
        [completion] = await engine.generate(Request([Message(role="user", content="?")], SeedKey(1, "t")))
        await engine.close()
        return completion.text

    assert asyncio.run(work()) == "0"


def test_a_worker_that_dies_while_others_still_load_is_reported_immediately(chat: ChatFormat) -> None:
    with pytest.raises(UserError, match="engine vllm: worker process 2 of 2 ended with exit code 3"):
        replicated([WorkerSpec(loads_forever), WorkerSpec(dies)], chat)


def test_a_loading_worker_does_not_outlive_a_killed_parent() -> None:
    ours, theirs = multiprocessing.Pipe()

    def parent() -> None:
        process, _line = start_worker("spawn", WorkerSpec(loads_forever))
        theirs.send(process.pid)
        threading.Event().wait()

    process = multiprocessing.get_context("fork").Process(target=parent)
    process.start()
    try:
        assert ours.poll(60)
        worker = psutil.Process(ours.recv())
        process.kill()
        assert not psutil.wait_procs([worker], timeout=60)[1]
    finally:
        process.kill()
        process.join()


def test_a_stage_that_does_not_close_its_worker_still_exits(tmp_path: Path) -> None:
    """At exit, Python waits for non-daemon processes, such as workers with children."""
    code = (
        "from selfimprove.engines.cluster.worker import WorkerSpec, start_worker\n"
        "from tests.engines.cluster.test_worker import with_child\n"
        "if __name__ == '__main__':\n"
        "    process, line = start_worker('spawn', WorkerSpec(with_child, has_children=True))\n"
        "    print(line.recv()[0])\n"
    )
    (tmp_path / "stage.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "stage.py")], capture_output=True, text=True, timeout=120, env=environment
    )
    assert (done.stdout, done.returncode) == ("ready\n", 0), done.stderr
