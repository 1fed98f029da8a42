"""DeepSpeed in bfloat16: weights in bfloat16, master weights and the examples' coefficients in float32."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.training.checkpoints import seal
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import encode_examples
from selfimprove.training.job import RunJob
from selfimprove.training.launch import finetune
from selfimprove.training.loading import load_base
from selfimprove.training.loop import PlannedTrainer
from selfimprove.training.objective import example_scales, weighted_nll
from selfimprove.training.packing import make_plan
from selfimprove.training.processes import worker_environment
from selfimprove.training.rows import MODEL_INPUTS, render
from selfimprove.training.zero import read_tensors_only

Maker = Callable[..., list[Example]]
ZERO_2 = {"kind": "deepspeed", "processes": 1, "zero_stage": 2}


def params(**changes: Any) -> FinetuneParams:
    told = {
        "batch_size": 8, "micro_batch_tokens": 9000, "row_tokens": 150, "max_length": 300, "lr": 1e-3,
        "dtype": "bfloat16", "logging_steps": 1, "save_steps": 1, "launcher": ZERO_2, **changes,
    }  # fmt: skip
    return FinetuneParams.model_validate(told, strict=False)


@pytest.fixture(scope="module")
def half(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a bfloat16 checkpoint."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("half") / "model")
    state = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"dtype": "float32"}, torch.float32),
        ({"launcher": {"kind": "single"}}, torch.float32),  # these train the loaded weights themselves
        ({"launcher": {"kind": "torchrun", "processes": 2}}, torch.float32),
        ({"launcher": {"kind": "single"}, "lora": {}}, torch.bfloat16),
    ],
    ids=str,
)
def test_a_bfloat16_model_is_loaded_in_float32_only_if_its_loaded_weights_are_trained(
    tiny: Path, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    model, _ = load_base(tiny, params(**changes))
    assert {weight.dtype for weight in model.parameters()} == {dtype}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_deepspeed_computes_on_the_trainings_device_although_this_process_has_saved_a_model_on_its_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")  # as a rehearsal sets it, whose stages inherit it
    job = RunJob(
        model_dir=tmp_path, out_dir=tmp_path, checkpoints=tmp_path, params=params(device=device), seed=1, threads=2
    )
    assert worker_environment(job)["DS_ACCELERATOR"] == device


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_zero_in_bfloat16_keeps_coefficients_and_master_weights_in_float32_and_resumes_exactly(
    half: Path, dialogues: Maker, tmp_path: Path
) -> None:
    examples, cfg = dialogues(16), params()
    options: dict[str, Any] = {"scratch": tmp_path / "scratch", "seed": 3, "threads": 1}
    whole = finetune(half, examples, tmp_path / "whole", cfg, **options)

    encoded, _ = encode_examples(examples, ChatFormat.load(half), cfg.max_length)
    lengths = [len(one.ids) for one in encoded]
    [first, _] = make_plan(lengths, batch_size=8, row_tokens=150, micro_batch_tokens=9000, seed=3).steps
    batch = [encoded[index] for index in first.examples]
    scales = dict(zip(first.examples, example_scales(batch, "example_mean", "none"), strict=True))
    model = AutoModelForCausalLM.from_pretrained(half, dtype=torch.bfloat16)
    torch.set_num_threads(1)
    exact = rounded = 0.0
    for micro in first.shares[0]:
        inputs = render(micro, encoded, scales, ChatFormat.load(half).pad_id)
        with torch.no_grad():
            logits = model(**{key: inputs[key] for key in MODEL_INPUTS if key in inputs}, use_cache=False).logits
        coefficients = inputs["coefficients"]
        exact += float(weighted_nll(logits, inputs["input_ids"], coefficients))
        rounded += float(weighted_nll(logits, inputs["input_ids"], coefficients.bfloat16().float()))
    assert abs(exact - rounded) > 5e-5 * exact
    assert whole.loss[0][1] == pytest.approx(exact, rel=1e-5)

    [states] = tmp_path.glob("scratch/checkpoints-*/checkpoint-1/global_step1/*optim_states.pt")
    kept = torch.load(states, weights_only=False)["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    assert {part.dtype for part in kept} == {torch.float32}

    resumed = finetune(half, examples, tmp_path / "resumed", cfg, **options)
    assert (whole.timing.resumed_at, resumed.timing.resumed_at) == (0, 1)
    assert resumed.loss == whole.loss
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert files[0] == files[1]


class MakesAFolder:
    """Its pickle creates a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_deletes_stale_compiler_locks_and_loads_only_tensors(
    half: Path, dialogues: Maker, tmp_path: Path
) -> None:
    def train(folder: Path, progress: Any = None) -> Any:
        options: dict[str, Any] = {"scratch": folder / "s", "seed": 3, "threads": 1, "progress": progress}
        return finetune(half, dialogues(12), folder / "model", params(save_steps=1), **options)

    def sigterm(done: int, *_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, sigterm)
    saved = max(tmp_path.glob("s/*/checkpoint-*"))
    lock = saved.parent / f"extensions-{socket.gethostname()}" / "py311_cpu" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 2,) * 2)  # start times of processes have a resolution of one second
    [state] = saved.rglob("*optim_states.pt")
    whole = state.read_bytes()
    torch.save({"optimizer_state_dict": MakesAFolder(tmp_path / "ran")}, state)
    seal(saved)
    with pytest.raises(UserError, match="the training processes failed with exit code 1"):
        train(tmp_path)
    assert not (tmp_path / "ran").exists(), "no code in a checkpoint is run"
    assert not lock.exists()
    assert f"{lock}: deleted; it was left by a run that was killed" in (saved.parent / "worker.log").read_text()
    state.write_bytes(whole)
    seal(saved)
    assert train(tmp_path).timing.resumed_at == 1
    assert [one for one in lock.parents[2].rglob("*") if one.is_file()] == [], "nothing is compiled here"


class Called:
    """Pickled as a call of ``getattr``, like members of an enumeration in Python before 3.11.4."""

    def __init__(self, kind: type, name: str) -> None:
        self.arguments = (kind, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.arguments


def test_a_checkpoint_may_use_getattr_only_for_a_zero_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")  # restored after the test
    before = torch.serialization.get_safe_globals()
    read_tensors_only()  # overrides weights_only=False, which DeepSpeed passes
    try:
        added = set(torch.serialization.get_safe_globals()) - set(before)
        assert not any(isinstance(one, tuple) for one in added), "torch 2.5, XTuner's on GPUs, takes no pairs"
        torch.save({"zero_stage": Called(ZeroStageEnum, "weights")}, tmp_path / "good.pt")
        assert torch.load(tmp_path / "good.pt", weights_only=False) == {"zero_stage": ZeroStageEnum.weights}
        for bad in (Called(LossScaler, "__init__"), Called(ZeroStageEnum, "__init__")):
            torch.save(bad, tmp_path / "bad.pt")
            with pytest.raises(pickle.UnpicklingError, match="not a ZeRO stage"):
                torch.load(tmp_path / "bad.pt", weights_only=False)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


@pytest.mark.parametrize(("stage", "rank", "copies"), [(2, 0, 2), (2, 1, 0), (3, 0, 2), (3, 1, 2)])
def test_only_processes_that_are_needed_copy_the_weights_to_host_memory(
    stage: int, rank: int, copies: int, tmp_path: Path
) -> None:
    """With ZeRO-3 all are, since they gather the weights, of which only the first one gets a copy."""
    seen: list[object] = []

    def state_of(model: object) -> dict[str, torch.Tensor]:
        seen.append(model)
        return {}

    trainer: Any = object.__new__(cast(Any, PlannedTrainer))
    trainer.model = SimpleNamespace(config=SimpleNamespace(), save_pretrained=lambda *_, **more: None)
    trainer.deepspeed = trainer.model_wrapped = SimpleNamespace(config={}, save_checkpoint=lambda: None)
    trainer.accelerator = SimpleNamespace(get_state_dict=state_of, unwrap_model=lambda model: model)
    trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled = True, False
    trainer.is_world_process_zero = lambda: rank == 0
    trainer.args = SimpleNamespace(should_save=False, push_to_hub=False)
    trainer._job = SimpleNamespace(params=params(launcher={**ZERO_2, "zero_stage": stage}))
    trainer.save_model(str(tmp_path))
    trainer.write_model(tmp_path)
    assert len(seen) == copies
