"""Reflect-RL with its GPU profile's components, on a CPU: vLLM as the frozen reflector, LoRA on an 8-bit GPT-2.

Runs in the optional environment .venvs/vllm (``make test-backends-vllm``), which contains vLLM and bitsandbytes.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.seeds import SeedKey
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.methods.reflect_rl.learn import learn
from selfimprove.methods.reflect_rl.params import EvaluateParams
from selfimprove.methods.reflect_rl.reflector import files_hash
from selfimprove.methods.reflect_rl.rl_policy import example, order
from selfimprove.methods.reflect_rl.rl_run import Run
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merging import full_weights
from tests.methods.reflect_rl.corridor import Corridor
from tests.methods.reflect_rl.test_learn import log, make_job, params
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.backend

GREEDY = {"reflect_temperature": 0.0, "max_steps": 3}
VLLM = VllmEngineConfig(engine="vllm", context=128, dtype="float32", max_sequences=16)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama") / "model", spread=0.08)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with two layers; it uses Conv1D layers and ties its head to its embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = make_tiny_model(tmp_path_factory.mktemp("gpt2") / "model")
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = GPT2Config(
        vocab_size=vocab, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.15, bos_token_id=None,
        eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_training_with_the_reflector_in_vllm_equals_training_with_it_in_our_engine(llama: Path, tmp_path: Path) -> None:
    own = make_job(llama, tmp_path / "own", params(**GREEDY), reflector=True)
    other = make_job(llama, tmp_path / "vllm", params(**GREEDY), reflector=True, reflector_engine=VLLM)
    reports = [learn(own), learn(other)]
    assert [step["prompt"] for row in log(own) for one in row["log"] for step in one["detail"]] == [
        step["prompt"] for row in log(other) for one in row["log"] for step in one["detail"]
    ]
    assert log(own) == log(other)
    assert reports[1].reflector_hash == files_hash(llama)
    assert (own.out_dir / "model.safetensors").read_bytes() == (other.out_dir / "model.safetensors").read_bytes()


def test_the_policy_makes_the_same_decisions_in_vllm_as_in_our_engine(llama: Path) -> None:
    from selfimprove.engines.factory import make_engine

    cfg = EvaluateParams(mask_invalid=True)
    own = TransformersEngineConfig(engine="transformers", slots=8, context=128, prefill_rows=4, prefill_block=16)

    async def episodes(engine_cfg: Any) -> list[Any]:
        engine = make_engine(engine_cfg, policy_dir=llama, threads=1, expert=None)
        try:
            keys = [SeedKey(3, str(task)) for task in range(6)]
            return await asyncio.gather(*(play(i, Corridor(), None, engine, cfg, key) for i, key in enumerate(keys)))
        finally:
            await engine.close()

    ours, theirs = asyncio.run(episodes(own)), asyncio.run(episodes(VLLM))
    for a, b in zip(ours, theirs, strict=True):
        assert [step.label for step in a.steps] == [step.label for step in b.steps]
        for one, two in zip(a.steps, b.steps, strict=True):
            assert one.logprob == pytest.approx(two.logprob, abs=1e-4)
            assert one.entropy == pytest.approx(two.entropy, abs=1e-4)


def test_adapters_on_8_bit_weights_train_and_play_in_bfloat16(
    gpt2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not 4-bit: on a CPU, bitsandbytes repacks 4-bit weights for inference on first use, which prevents training."""
    lora = {"rank": 4, "alpha": 8, "quantize": "8bit"}
    changes = {"lora": lora, "dtype": "bfloat16", "gradient_checkpointing": True, "max_steps": 2}
    run = Run(make_job(gpt2, tmp_path, params(**changes)), 1, None)
    assert run._models.engine._decoder.slots.kv.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in run._models.policy.trainable} == {torch.float32}
    before = {name: value.clone() for name, value in run._models.policy.state().items()}
    with asyncio.Runner() as runner:
        losses = [run._iterate(iteration, runner)["loss"][0] for iteration in range(2)]
        played = runner.run(run._play(5, run._schedule[0]))
    assert all(math.isfinite(loss) for loss in losses)
    assert all(not torch.equal(value, before[name]) for name, value in run._models.policy.state().items())
    some = [step for one in played if one.trajectory for step in one.trajectory.decisions]
    with torch.no_grad():
        values, _ = run._models.policy.evaluate((tuple(range(len(some))),), some, [example(one) for one in some])
    acted = torch.tensor([some[index].logprob for index in order((tuple(range(len(some))),))])
    # bfloat16 has eight significant bits: another summation order changes values by 1/128 or more, which depends on
    # the processor
    off = (values - acted).abs()
    assert off.mean() < 0.03
    assert off.max() < 0.1
    job = make_job(gpt2, tmp_path / "whole", params(**changes))
    learn(job)
    load_causal_lm(full_weights(job.out_dir))
    assert not [record for record in caplog.records if "MatMul8bitLt" in record.message]
