"""Checks before vLLM loads: context, attention heads, GPUs, replicas, memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.core.records import Message
from selfimprove.engines.cluster.replicas import vllm_specs
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.engines.lazy import LazyEngine
from selfimprove.engines.pool import open_engines
from selfimprove.engines.vllm.checks import check_gpu_memory, check_model, positions, replica_count, visible_gpus
from tests.support.tiny import train_tokenizer

LLAMA_2 = {"model_type": "llama", "num_attention_heads": 32, "max_position_embeddings": 4096}


def cfg(**changes: object) -> VllmEngineConfig:
    return VllmEngineConfig.model_validate({"engine": "vllm", **changes})


def model(folder: Path, config: object) -> Path:
    train_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty package named vllm, which suffices for the checks before vLLM loads."""
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA_2, 4096),
        ({"n_positions": 1024, "n_ctx": 1024, "n_head": 25}, 1024),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 32768),
        ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 131072}}, 131072),
        ({"model_type": "mamba"}, None),
        ({"max_position_embeddings": 2048, "text_config": "llama", "rope_scaling": "linear"}, 2048),
    ],
)
def test_the_positions_of_a_model_are_read_from_its_config(config: dict[str, object], expected: int | None) -> None:
    assert positions(config) == expected


def test_a_context_of_all_positions_is_accepted_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "llama", LLAMA_2)
    check_model(cfg(context=4096), folder)
    with pytest.raises(UserError, match=r"context 4097 exceeds the 4096 positions of .*llama"):
        check_model(cfg(context=4097), folder)


@pytest.mark.parametrize("config", [{"num_attention_heads": 28}, {"n_head": 28}, {"text_config": {"n_head": 28}}])
def test_tensor_parallel_must_divide_the_attention_heads(config: dict[str, object], tmp_path: Path) -> None:
    folder = model(tmp_path / "model", config)
    check_model(cfg(tensor_parallel=4), folder)
    with pytest.raises(UserError, match="tensor_parallel 8 does not divide the 28 attention heads"):
        check_model(cfg(tensor_parallel=8), folder)


def test_tensor_parallel_must_divide_the_key_value_heads_or_be_a_multiple_of_them(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", {"num_attention_heads": 24, "num_key_value_heads": 8})
    for width in (2, 4, 8, 24):
        check_model(cfg(tensor_parallel=width), folder)
    with pytest.raises(
        UserError, match="tensor_parallel 12 does not divide the 24 attention heads \\(8 key/value heads\\)"
    ):
        check_model(cfg(tensor_parallel=12), folder)


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_a_config_that_is_no_json_object_is_refused(text: str, said: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "model", LLAMA_2)
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        check_model(cfg(), folder)


# --- the GPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "gpus", "expected"),
    [
        ({}, 0, 1),
        ({}, 1, 1),
        ({}, 8, 8),
        ({"tensor_parallel": 4}, 8, 2),
        ({"tensor_parallel": 8}, 8, 1),
        ({"replicas": 3}, 8, 3),
        ({"replicas": 3}, 0, 3),
    ],
)
def test_replicas_fill_the_visible_gpus_unless_their_number_is_set(
    changes: dict[str, object], gpus: int, expected: int
) -> None:
    assert replica_count(cfg(**changes), gpus) == expected


@pytest.mark.parametrize(
    ("changes", "gpus", "words"),
    [
        ({"tensor_parallel": 3}, 8, "tensor_parallel 3 does not divide the number of visible GPUs, 8"),
        ({"tensor_parallel": 2, "replicas": 3}, 4, "3 replicas x tensor_parallel 2 need 6 GPUs, but 4 are visible"),
        ({"tensor_parallel": 8}, 4, "tensor_parallel 8 does not divide the number of visible GPUs, 4"),
        ({"tensor_parallel": 2}, 0, "need 2 GPUs, but 0 are visible"),
    ],
)
def test_too_few_gpus_and_a_tensor_parallel_that_does_not_divide_them_are_refused(
    changes: dict[str, object], gpus: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        replica_count(cfg(**changes), gpus)


def test_each_replica_gets_its_own_gpus_and_its_share_of_the_threads(tmp_path: Path) -> None:
    gpus = ["4", "5", "GPU-6f", "7"]  # as in CUDA_VISIBLE_DEVICES
    specs = vllm_specs(cfg(tensor_parallel=2), tmp_path, replicas=2, gpus=gpus, threads=5)
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["4,5", "GPU-6f,7"]
    assert [spec.environment["OMP_NUM_THREADS"] for spec in specs] == ["2", "2"]
    assert all(spec.has_children for spec in specs), "vLLM starts a process a GPU, which a daemon must not"
    on_cpu = vllm_specs(cfg(), tmp_path, replicas=3, gpus=[], threads=2)
    assert [dict(spec.environment) for spec in on_cpu] == [{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}] * 3


def test_the_visible_gpus_are_those_of_cuda_visible_devices_if_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # a machine with GPUs; torch counts the visible ones
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")
    assert visible_gpus() == ["6", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("student", "teacher", "fits"),
    [
        ({"gpu_memory": 0.6}, {"gpu_memory": 0.4}, True),
        ({"gpu_memory": 0.6}, {"gpu_memory": 0.5}, False),
        ({}, {}, False),
        ({"replicas": 1, "gpu_memory": 0.6}, {"tensor_parallel": 2, "gpu_memory": 0.5}, False),
    ],
)
def test_engines_that_share_gpus_must_not_request_more_memory_than_they_have(
    student: dict[str, object], teacher: dict[str, object], fits: bool
) -> None:
    engines = {"student": cfg(**student), "teacher": cfg(**teacher)}
    check_gpu_memory(engines, 0)  # a CPU has no GPU memory to share
    if fits:
        check_gpu_memory(engines, 2)
    else:
        with pytest.raises(UserError, match=r"share GPU 0 adds up to 1\.\d"):
            check_gpu_memory(engines, 2)


# --- before anything loads --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_the_factory_refuses_invalid_settings_and_loads_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    folder = model(tmp_path / "llama", LLAMA_2)

    def make(**changes: object) -> object:
        return make_engine(cfg(**changes), policy_dir=folder, threads=1, expert=None)

    with pytest.raises(UserError, match="4096 positions"):
        make(context=5000)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(UserError, match="does not divide the number of visible GPUs"):
        make(tensor_parallel=8)
    engine = make(context=64)
    assert isinstance(engine, LazyEngine)
    question = [Message(role="user", content="3 + 4?")]
    assert engine.fits(question, 64 - engine.prompt_tokens(question))
    assert not engine.fits(question, 65 - engine.prompt_tokens(question))
    assert engine.stats.requests == 0
    asyncio.run(engine.close())


@pytest.mark.usefixtures("installed")
def test_two_vllm_engines_of_a_stage_that_request_more_than_the_memory_of_a_gpu_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    folder = model(tmp_path / "llama", LLAMA_2)

    async def opened(**teacher: object) -> list[str]:
        configs = {"student": cfg(), "teacher": cfg(**teacher)}
        with Journal(tmp_path / "journal") as journal:
            async with open_engines(configs, dict.fromkeys(configs, folder), threads=1, journal=journal) as engines:
                return list(engines)

    assert asyncio.run(opened(gpu_memory=0.1)) == ["student", "teacher"]
    with pytest.raises(UserError, match=r"adds up to 1\.8 \(student 0\.9 \+ teacher 0\.9\); lower"):
        asyncio.run(opened())
