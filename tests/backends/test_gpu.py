"""Generation and fine-tuning on an NVIDIA GPU (make test-gpu): the same results as on a CPU, within rounding."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.engines.base import Completion
from selfimprove.engines.cpu.graphs import Graphs
from selfimprove.engines.cpu.slots import CacheShape, Rows
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merging import full_weights
from selfimprove.training import trainer  # noqa: F401  (not first imported by several threads at once)
from selfimprove.training.report import TrainReport
from tests.backends.gpu import (
    DEVICE,
    a_gpu,  # noqa: F401
    answers,
    check_close,
    clean_gpu,  # noqa: F401
    identical,
    little_memory,
    losses,
    make_engine,
    note,
    requests,
    sft,
    tuned,
)
from tests.support.sentences import check_sentence, refused_with
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.backend

Maker = Callable[..., list[Example]]
BF16 = 0.02
"""Relative tolerance of losses in bfloat16, which has eight bits of precision."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with grouped heads of 64 dimensions, as GPU kernels like them."""
    folder = tmp_path_factory.mktemp("small") / "model"
    return make_tiny_model(folder, hidden=256, layers=3, heads=4, kv_heads=2, spread=0.06)


# --- generation ------------------------------------------------------------------------------------------------------


def scored(folder: Path, completions: list[Completion], prompts: list[list[int]], end: int) -> list[float]:
    """Absolute differences of the completions' log-probabilities from a plain forward pass in float32."""
    model = load_causal_lm(folder)
    apart = []
    for completion, prompt in zip(completions, prompts, strict=True):
        assert completion.token_ids is not None
        assert completion.logprobs is not None
        ids = [*completion.token_ids, end][: len(completion.logprobs)]
        with torch.inference_mode():
            table = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        apart += [
            abs(float(row[token]) - told) for row, token, told in zip(table, ids, completion.logprobs, strict=True)
        ]
    return apart


def test_float32_gives_the_tokens_and_log_probabilities_of_the_cpu(small: Path) -> None:
    here, there = (answers(make_engine(small, device=device), requests()) for device in (DEVICE, "cpu"))
    different = [number for number, (a, b) in enumerate(zip(here, there, strict=True)) if a.token_ids != b.token_ids]
    assert different == [], (
        f"{len(different)} of {len(here)} completions; first {here[different[0]]} {there[different[0]]}"
    )
    assert [(one.text, one.finish) for one in here] == [(one.text, one.finish) for one in there]
    for one, other in zip(here, there, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert (one.choice is None) == (other.choice is None)
        if one.choice is not None and other.choice is not None:
            assert one.choice.prompt_ids == other.choice.prompt_ids
            assert (one.choice.logprob, one.choice.entropy) == pytest.approx(
                (other.choice.logprob, other.choice.entropy), abs=1e-3
            )


def test_bfloat16_gives_log_probabilities_near_those_of_float32(small: Path) -> None:
    asked = [request for request in requests() if request.n == 1 and not request.choice and not request.stop]
    engine = make_engine(small, device=DEVICE, dtype="bfloat16")
    completions = answers(engine, asked)
    prompts = [engine.chat.encode(request.messages, add_generation_prompt=True).ids for request in asked]
    apart = scored(small, completions, prompts, engine.chat.end_id)
    mean = sum(apart) / len(apart)
    note("generation in bfloat16", mean_difference=mean, largest=max(apart), tokens=len(apart))
    assert mean < 0.05, f"mean {mean:.3f} nats, largest {max(apart):.3f}, over {len(apart)} tokens"


def test_cached_prefixes_and_the_order_of_requests_do_not_change_completions(small: Path) -> None:
    engine = make_engine(small, device=DEVICE)
    first = answers(engine, requests())
    copied = engine.stats.cached_prompt_tokens
    again = answers(engine, requests())
    assert engine.stats.cached_prompt_tokens > copied > 0
    assert [one.token_ids for one in again] == [one.token_ids for one in first]
    backwards = answers(make_engine(small, device=DEVICE), requests()[::-1])
    assert sorted(one.text for one in backwards) == sorted(one.text for one in first)
    note("generation, float32, twice", identical=[one.logprobs for one in again] == [one.logprobs for one in first])


def test_a_model_that_reads_results_on_the_host_runs_without_graphs(small: Path) -> None:
    engine = make_engine(small, device=DEVICE)
    graphs = engine._decoder._forward
    assert isinstance(graphs, Graphs)
    step = graphs._forward.step

    def reading(rows: Rows, ids: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        assert int(ids.max()) >= 0
        return step(rows, ids, *inputs)

    setattr(graphs._forward, "step", reading)  # noqa: B010
    expected = answers(make_engine(small, device=DEVICE), requests())
    assert [one.token_ids for one in answers(engine, requests())] == [one.token_ids for one in expected]
    assert not graphs.recordable


def test_a_kv_cache_larger_than_the_gpu_is_refused(small: Path) -> None:
    with refused_with(r"a KV cache of 8192 rows of 10000000 tokens .* GiB of memory, but only"):
        Rows(CacheShape(2, 4, 64, torch.float32), 8192, 10**7, torch.device(DEVICE))


def test_a_kv_cache_larger_than_the_free_memory_names_the_engine_s_params(small: Path) -> None:
    with little_memory(256), refused_with(r"^engine transformers: the GPU's memory is exhausted \(\d.* slots \(4096\)"):
        make_engine(small, device=DEVICE, slots=4096)
    assert answers(make_engine(small, device=DEVICE), requests()[:2])


# --- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(small: Path, dialogues: Maker, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """Report and folder of the float32 run on the GPU that changed runs are compared with."""
    folder = tmp_path_factory.mktemp("plain")
    return sft(small, dialogues(24), folder, tuned(validation=0.25)), folder


def test_float32_training_gives_the_losses_and_weights_of_the_cpu(
    small: Path, dialogues: Maker, tmp_path: Path, plain: tuple[TrainReport, Path]
) -> None:
    report, folder = plain
    expected = sft(small, dialogues(24), tmp_path, tuned(validation=0.25, device="cpu"))
    assert losses(report) == pytest.approx(losses(expected), rel=1e-3)
    assert len(report.evaluations) == len(expected.evaluations) == 2
    for one, other in zip(report.evaluations, expected.evaluations, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    assert report.model_dump(exclude={"loss", "evaluations", "timing"}) == expected.model_dump(
        exclude={"loss", "evaluations", "timing"}
    )
    check_close(folder / "model", tmp_path / "model", small, 0.02)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"attention": "eager"}, 1e-3),
        ({"attention": "segments"}, 1e-3),
        ({"gradient_checkpointing": True}, 1e-3),
        ({"row_tokens": 1, "micro_batch_tokens": 1}, 1e-3),  # without a mask
        ({"tf32": True}, 5e-3),
        ({"dtype": "bfloat16"}, BF16),
        ({"dtype": "bfloat16", "attention": "eager"}, BF16),
        ({"dtype": "bfloat16", "attention": "segments", "gradient_checkpointing": True}, BF16),
    ],
    ids=str,
)
def test_attention_checkpointing_and_precision_give_the_same_losses(
    small: Path, dialogues: Maker, tmp_path: Path, plain: tuple[TrainReport, Path], changes: Any, tolerance: float
) -> None:
    report = sft(small, dialogues(24), tmp_path, tuned(validation=0.25, **changes))
    assert losses(report) == pytest.approx(losses(plain[0]), rel=tolerance)
    assert [one["eval_loss"] for one in report.evaluations] == pytest.approx(
        [one["eval_loss"] for one in plain[0].evaluations], rel=tolerance
    )


def test_an_adapter_trained_in_bfloat16_is_merged_and_generates(small: Path, dialogues: Maker, tmp_path: Path) -> None:
    params = tuned(dtype="bfloat16", lora={"rank": 4, "alpha": 8, "dropout": 0.1}, lr=5e-3, epochs=4)
    report = sft(small, dialogues(24), tmp_path, params)
    assert losses(report)[-1] < losses(report)[0], losses(report)
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()
    merged = full_weights(tmp_path / "model")
    engine = make_engine(merged, device=DEVICE, dtype="bfloat16")
    assert all(one.token_ids is not None for one in answers(engine, requests()))


def test_training_that_diverges_is_reported_in_one_sentence(small: Path, dialogues: Maker, tmp_path: Path) -> None:
    params = tuned(schedule="constant", warmup_ratio=0.0).model_copy(update={"lr": 1e37})
    with refused_with(r"^step 2 of 6: the loss is \S+ and the gradient norm nan, .*lower train\.lr"):
        sft(small, dialogues(24), tmp_path, params)
    assert not (tmp_path / "model").exists()


class Stopped(Exception):
    """Ends a run between two steps, as a crash does."""


@pytest.mark.parametrize(
    "changes", [{}, {"dtype": "bfloat16", "lora": {"rank": 4, "dropout": 0.1}}], ids=["full", "lora"]
)
def test_a_stopped_run_resumes_at_its_checkpoint_and_ends_like_an_unbroken_one(
    small: Path, dialogues: Maker, tmp_path: Path, changes: dict[str, Any]
) -> None:
    params = tuned(save_steps=2, **changes)
    unbroken = sft(small, dialogues(24), tmp_path / "unbroken", params)

    def stop(done: int, *_: Any) -> None:
        if done == 5:
            raise Stopped

    with pytest.raises(Stopped):
        sft(small, dialogues(24), tmp_path / "stopped", params, progress=stop)
    resumed = sft(small, dialogues(24), tmp_path / "stopped", params)
    assert (unbroken.timing.resumed_at, resumed.timing.resumed_at) == (0, 4)
    assert losses(resumed) == pytest.approx(losses(unbroken), rel=1e-4 if not changes else BF16)
    if not changes:
        check_close(tmp_path / "stopped" / "model", tmp_path / "unbroken" / "model", small, 0.01)
        same = identical(tmp_path / "stopped" / "model", tmp_path / "unbroken" / "model")
        note("resumed training, float32", identical=same)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_repeated_run_ends_near_the_first(small: Path, dialogues: Maker, tmp_path: Path, dtype: str) -> None:
    one, two = (sft(small, dialogues(24), tmp_path / name, tuned(dtype=dtype)) for name in "ab")
    same = identical(tmp_path / "a" / "model", tmp_path / "b" / "model")
    note(f"training twice, {dtype}", weights_identical=same, losses_identical=one.loss == two.loss)
    assert losses(one) == pytest.approx(losses(two), rel=1e-4 if dtype == "float32" else BF16)


def test_flash_attention_runs_or_one_sentence_says_why_not(
    small: Path, dialogues: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = sft(small, dialogues(24), tmp_path / "sdpa", tuned(dtype="bfloat16"))
    capsys.readouterr()
    report = sft(small, dialogues(24), tmp_path / "flash", tuned(dtype="bfloat16", attention="flash_attention_2"))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.attention: ")]
    assert report.attention is not None
    note("flash attention", ran=report.attention, said=said)
    if said:
        assert "flash_attention_2 cannot run here (" in said[0]
        assert report.attention == "segments"
    else:
        assert "flash" in report.attention
    assert losses(report) == pytest.approx(losses(masked), rel=BF16)


def test_a_micro_batch_larger_than_the_gpu_names_the_params_that_need_memory(
    small: Path, dialogues: Maker, tmp_path: Path
) -> None:
    params = tuned(batch_size=400, micro_batch_tokens=100_000)
    with little_memory(300), pytest.raises(UserError, match=r"^train: the GPU's memory is exhausted \(\d") as error:
        sft(small, dialogues(400), tmp_path, params)
    check_sentence(str(error.value))
    assert "train.micro_batch_tokens (100000)" in str(error.value)
    assert not (tmp_path / "model").exists()


# --- launchers -------------------------------------------------------------------------------------------------------

LAUNCHERS: dict[str, dict[str, Any]] = {
    "torchrun": {"kind": "torchrun", "processes": 1},
    "zero2": {"kind": "deepspeed", "processes": 1, "zero_stage": 2},
    "zero3": {"kind": "deepspeed", "processes": 1, "zero_stage": 3},
}


@pytest.fixture(scope="module")
def launched(
    small: Path, dialogues: Maker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[TrainReport, Path]]]]:
    """Runs of all launchers, at the same time, since starting processes takes most of it."""

    def run(name: str) -> tuple[TrainReport, Path]:
        folder = tmp_path_factory.mktemp(name)
        params = tuned(dtype="bfloat16", save_steps=4, launcher=LAUNCHERS[name])
        return sft(small, dialogues(24), folder, params), folder

    with ThreadPoolExecutor() as threads:
        yield {name: threads.submit(run, name) for name in ("torchrun", "zero2", "zero3")}


@pytest.mark.parametrize("name", ["torchrun", "zero2", "zero3"])
def test_a_launched_process_gives_the_losses_of_training_in_this_one(
    small: Path, dialogues: Maker, tmp_path: Path, launched: dict[str, Future[tuple[TrainReport, Path]]], name: str
) -> None:
    if name != "torchrun":
        pytest.importorskip("deepspeed")
    alone = sft(small, dialogues(24), tmp_path, tuned(dtype="bfloat16"))
    report, folder = launched[name].result()
    assert losses(report) == pytest.approx(losses(alone), rel=BF16)
    model = load_causal_lm(folder / "model", dtype="bfloat16")
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_zero2_resumes_from_its_checkpoint(
    small: Path, dialogues: Maker, launched: dict[str, Future[tuple[TrainReport, Path]]]
) -> None:
    pytest.importorskip("deepspeed")
    whole, folder = launched["zero2"].result()
    (folder / "model").rename(folder / "whole")
    params = tuned(dtype="bfloat16", save_steps=4, launcher=LAUNCHERS["zero2"])
    resumed = sft(small, dialogues(24), folder, params)
    assert resumed.timing.resumed_at == 4
    assert losses(resumed) == pytest.approx(losses(whole), rel=BF16)
    assert all(math.isfinite(loss) for loss in losses(resumed))
    note("resumed training, ZeRO-2", identical=identical(folder / "model", folder / "whole"))


# --- stage starts ----------------------------------------------------------------------------------------------------


def test_stages_can_be_forked_from_the_helper_that_has_imported_torch_and_transformers() -> None:
    program = (
        "import os\nfrom selfimprove.pipeline import forks, warm\nos.environ.update(forks.NVML_CHECK)\nwarm._import()\n"
        "print(forks.tried_in_fork(forks.gpu_computes))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=280)
    assert done.stdout.split() == ["True"], "the imports initialise CUDA, so every stage does its own"
