"""Helpers for the GPU's tests: device and small model, runs of each kind, the report of what is bit-identical.

Tests compare the GPU with the CPU, which the other tests compare with the definitions.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.records import Example
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune
from selfimprove.training.report import TrainReport
from tests.engines.asking import ask
from tests.support.tiny import weights

DEVICE = "cuda"
ENGINE = {"engine": "transformers", "slots": 8, "context": 192, "prefill_rows": 4, "prefill_block": 16}
TRAINING: dict[str, Any] = {
    "batch_size": 8, "micro_batch_tokens": 600, "row_tokens": 200, "max_length": 300, "lr": 1e-3, "logging_steps": 1,
    "weight_decay": 0.01, "epochs": 2,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def a_gpu() -> None:
    """End the whole call if there is no GPU: it was made to test one."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.exit("torch finds no GPU here; run make test-gpu on a machine with an NVIDIA GPU.", returncode=1)


@pytest.fixture(autouse=True)
def clean_gpu() -> Iterator[None]:
    """Each test starts with the GPU's memory free and in full precision, whatever the test before it left."""
    backends: Any = torch.backends
    precision = backends.fp32_precision
    yield
    if backends.fp32_precision != precision:  # training with tf32 sets it for the process
        backends.fp32_precision = precision
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def note(what: str, **values: Any) -> None:
    """Append a line to the file that GPU_REPORT names, if it is set: observations that no test demands."""
    if file := os.environ.get("GPU_REPORT"):
        with Path(file).open("a", encoding="utf-8") as report:
            report.write(json.dumps({"what": what, **values}) + "\n")


@contextmanager
def little_memory(megabytes: int) -> Iterator[None]:
    """Let torch allocate only this much of the GPU's memory, beyond what is allocated now."""
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + megabytes * 2**20) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def make_engine(folder: Path, **changes: Any) -> TransformersEngine:
    return TransformersEngine(TransformersEngineConfig.model_validate(ENGINE | changes), folder, threads=1)


def requests() -> list[Request]:
    """Requests of every kind, with prompts that share prefixes; more than there are slots."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 0.8},
        {"top_k": 7, "temperature": 0.7},
        {"n": 3, "top_p": 0.9, "top_k": 20},
        {"stop": ("e", "1"), "max_tokens": 40},
        {"allowed": ("yes", "7", "70", "no way"), "max_tokens": 20},
        {"allowed": ("0", "1", "2", "a"), "choice": True, "max_tokens": 1},
    ]
    return [ask(i, turns=i % 3, **{"seed": SeedKey(1, f"t{i}"), **kinds[i % len(kinds)]}) for i in range(40)]


def answers(engine: TransformersEngine, asked: Sequence[Request]) -> list[Completion]:
    """All samples of all requests, which are made at once."""

    async def everything() -> list[list[Completion]]:
        return await asyncio.gather(*map(engine.generate, asked))

    return [one for completions in asyncio.run(everything()) for one in completions]


def tuned(**changes: Any) -> FinetuneParams:
    return FinetuneParams.model_validate({**TRAINING, "device": DEVICE, **changes}, strict=False)


def sft(model: Path, examples: Sequence[Example], folder: Path, params: FinetuneParams, **more: Any) -> TrainReport:
    """Fine-tune with checkpoints in ``folder/scratch``, into ``folder/model``."""
    options = {"scratch": folder / "scratch", "seed": 3, "threads": 1, **more}
    return finetune(model, examples, folder / "model", params, **options)


def losses(report: TrainReport) -> list[float]:
    return [loss for _, loss in report.loss]


def identical(one: Path, other: Path) -> bool:
    """Whether two model folders hold the same bits."""
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def check_close(one: Path, other: Path, start: Path, share: float) -> None:
    """Weights may differ by a share of the distance that training moved them: Adam's first steps follow tiny signs."""
    ours, theirs, before = (weights(folder) for folder in (one, other, start))
    apart = {
        name: float((ours[name] - theirs[name]).norm() / (theirs[name] - before[name]).norm().clamp(min=1e-12))
        for name in theirs
    }
    worst = max(apart, key=apart.__getitem__)
    assert apart[worst] <= share, f"{worst} is {apart[worst]:.2%} of its way apart, and {share:.0%} is allowed"
