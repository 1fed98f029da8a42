"""The arguments with which vLLM's engine is built on a GPU, in place of which stands a package that records them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm.thread import VllmThread

PRECISION = "VLLM_FLOAT32_MATMUL_PRECISION"


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of vLLM that are imported to build an engine; afterwards, torch's precision and the environment."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": lambda **arguments: arguments},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.llm_engine": {"LLMEngine": SimpleNamespace(from_engine_args=lambda arguments: arguments)},
    }
    for name, held in contents.items():
        module = ModuleType(name)
        module.__dict__.update(held, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    before, precision = dict(os.environ), torch.backends.cuda.matmul.fp32_precision
    os.environ.pop(PRECISION, None)
    yield
    torch.backends.cuda.matmul.fp32_precision = precision
    os.environ.clear()
    os.environ.update(before)


def built(**changes: object) -> dict[str, Any]:
    """The arguments of the engine that a config leads to."""
    thread = object.__new__(VllmThread)
    thread._cfg = VllmEngineConfig.model_validate({"engine": "vllm", **changes})
    thread._model_dir = Path("model")
    arguments: Any = thread._build()
    return dict(arguments)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 8192),
        ({"context": 16384}, 16384),
        ({"max_sequences": 8192}, 8192),
        ({"context": 64, "max_sequences": 8}, 512),
    ],
)
def test_a_pass_has_room_for_a_token_of_every_sequence(changes: dict[str, object], tokens: int) -> None:
    arguments = built(**changes)
    assert arguments["max_num_batched_tokens"] == tokens >= arguments["max_num_seqs"]


def test_a_trainer_in_the_same_process_keeps_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    built()
    assert PRECISION not in os.environ
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    built()
    assert os.environ[PRECISION] == "high"
    monkeypatch.setenv(PRECISION, "highest")
    built()
    assert os.environ[PRECISION] == "highest"


def test_nothing_is_compiled_with_the_cuda_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer's sampler would be, when vLLM warms up on a GPU."""
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    built()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
