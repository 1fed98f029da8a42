"""Checkpoints on SIGTERM and by the clock do not change results; a run that resumes from one reports its step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from selfimprove.core.records import Example
from selfimprove.training import stopping
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune
from selfimprove.training.report import TrainReport

Maker = Callable[..., list[Example]]
STEPS = 10


def run(tiny: Path, examples: list[Example], folder: Path, progress: Any = None, **changes: Any) -> TrainReport:
    told = {
        "epochs": 2, "batch_size": 4, "micro_batch_tokens": 300, "row_tokens": 200, "max_length": 300, "lr": 1e-3,
        "save_steps": 100, "logging_steps": 4, **changes,
    }  # fmt: skip
    cfg = FinetuneParams.model_validate(told, strict=False)
    options: dict[str, Any] = {"scratch": folder / "scratch", "seed": 5, "threads": 1, "progress": progress}
    return finetune(tiny, examples, folder / "model", cfg, **options)


def model(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def checkpoints(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.glob("scratch/*/checkpoint-*"))


@pytest.mark.parametrize(
    "launcher",
    [
        {"kind": "single"},
        {"kind": "fork", "processes": 2},
        pytest.param({"kind": "torchrun", "processes": 1}, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
    ids=lambda launcher: launcher["kind"],
)
def test_on_sigterm_training_saves_a_checkpoint_and_resumes_to_the_same_bytes(
    tiny: Path, dialogues: Maker, tmp_path: Path, launcher: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    examples = dialogues(20)
    steps, long = 20 * STEPS, {"epochs": 40}  # so that no process has ended when the signal reaches it

    def sigterm(done: int, *_: Any) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(tiny, examples, tmp_path / "asked", sigterm, launcher=launcher, **long)
    assert not (tmp_path / "asked" / "model").exists()
    [saved] = checkpoints(tmp_path / "asked")
    step = int(saved.removeprefix("checkpoint-"))
    assert 3 <= step < steps
    capsys.readouterr()
    resumed = run(tiny, examples, tmp_path / "asked", launcher=launcher, **long)
    assert f"finetune: resuming at step {step} of {steps}\n" in capsys.readouterr().err
    assert resumed.timing.resumed_at == step
    unbroken = run(
        tiny, examples, tmp_path / "unbroken", launcher={**launcher, "kind": _quick(launcher["kind"])}, **long
    )
    assert resumed.loss == unbroken.loss
    assert model(tmp_path / "asked") == model(tmp_path / "unbroken")


def _quick(kind: str) -> str:
    return "single" if kind == "torchrun" else kind  # with one process both give the same bytes


def test_checkpoints_by_the_clock_do_not_change_a_byte(
    tiny: Path, dialogues: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = dialogues(20)
    plain = run(tiny, examples, tmp_path / "plain")
    assert checkpoints(tmp_path / "plain") == []
    monkeypatch.setattr(stopping, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(stopping, "SAVE_RATIO", 0.0)
    saving = run(tiny, examples, tmp_path / "saving")
    assert checkpoints(tmp_path / "saving") == ["checkpoint-8", "checkpoint-9"]
    assert saving.loss == plain.loss
    assert model(tmp_path / "saving") == model(tmp_path / "plain")


def test_the_clock_requests_checkpoints_every_five_minutes_and_less_often_if_they_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = stopping.SaveClock()

    def wish(seconds: float, *, first: bool = True) -> int:
        now[0] = seconds
        return clock.wish(first=first)

    assert (wish(299), wish(301), wish(301, first=False)) == (0, stopping.SAVE, 0)
    with clock.saving():
        now[0] = 401.0  # it took 100 s
    assert (wish(401 + 1999), wish(401 + 2001)) == (0, stopping.SAVE)


TALKING = """
import signal, sys, time
from pathlib import Path

def save(*_):
    print("x" * 1_000_000, flush=True)
    Path("saved").touch()
    sys.exit()

signal.signal(signal.SIGTERM, save)
print("@step [1, 1, \\"\\"]", flush=True)
time.sleep(600)
"""


def test_workers_that_write_much_while_they_save_are_not_stopped_by_a_full_pipe(tmp_path: Path) -> None:
    stage = """
import os, sys
from pathlib import Path
from selfimprove.training.processes import watch
watch([sys.executable, "-c", sys.argv[1]], dict(os.environ), Path("log"), lambda *_: print("begun", flush=True))
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", stage, TALKING],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"begun\n"
    worker = psutil.Process(launcher.pid).children()
    launcher.terminate()
    try:
        launcher.wait(timeout=60)
    finally:
        for process in [launcher, *worker]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert (tmp_path / "saved").exists()
