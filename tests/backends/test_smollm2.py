"""The real small model (``make models/smollm2``) on real rows: the CPU engine, every trainer, and XTuner.

Runs in the main environment (``make test-backends-smollm2``). The engine's log-probabilities and the first step's loss
are compared with plain forward passes of transformers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.models.base import BaseParams, resolve_model, take_weights
from selfimprove.models.merging import full_weights
from selfimprove.models.tokenizer import copy_tokenizer
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import encode_examples
from selfimprove.training.launch import finetune
from selfimprove.training.report import TrainReport
from tests.backends.smollm2_checks import CONTEXT, answered, check
from tests.backends.smollm2_rows import examples, model
from tests.backends.vllm_asking import Reference

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

PARAMS: dict[str, Any] = {
    "batch_size": 3, "micro_batch_tokens": 256, "row_tokens": 256, "max_length": 256, "lr": 1e-4,
    "schedule": "constant", "warmup_ratio": 0.0, "logging_steps": 1,
}  # fmt: skip


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Deleted after each test, because a run leaves two gigabytes of models and checkpoints."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def train(folder: Path, **changes: Any) -> TrainReport:
    cfg = FinetuneParams.model_validate({**PARAMS, **changes}, strict=False)
    return finetune(model(), examples(), folder / "model", cfg, scratch=folder / "scratch", seed=5, threads=1)


@pytest.fixture(scope="module")
def loss() -> float:
    """The mean over the examples of their mean loss per trained token, from plain forward passes."""
    reference = Reference(model())
    encoded, counters = encode_examples(examples(), reference.chat, 256)
    assert counters.examples == 3
    means = []
    for one in encoded:
        table = reference.logprobs(one.ids)
        trained = [place for place, weight in enumerate(one.token_weights) if weight]
        means.append(-sum(float(table[place - 1, one.ids[place]]) for place in trained) / len(trained))
    return sum(means) / len(means)


@pytest.mark.parametrize("template", [None, "zephyr", "rise", "react", "text"])
def test_the_model_is_a_usable_base_with_every_chat_template_of_the_profiles(
    template: str | None, tmp_path: Path
) -> None:
    copy_tokenizer(resolve_model(BaseParams(model=str(model()))), tmp_path, template)
    take_weights(model(), tmp_path, own=True)
    chat = ChatFormat.load(tmp_path)
    assert (chat.end_text, chat.end_id, chat.stop_ids, chat.pad_id) == ("<|im_end|>", 2, frozenset({2}), 2)
    messages = [Message(role="user", content="It costs 12 <|im_end|>"), Message(role="assistant", content="10 + 2")]
    encoded = chat.encode(messages)
    [said] = [encoded.ids[span.start : span.stop] for span in encoded.spans[1:]]
    assert (chat.decode(said), said[-1]) == ("10 + 2", 2)
    assert len(chat.content_ids(messages[1])) == 5, "digits stand apart: 1, 0, a plus, a space, 2"
    assert chat.end_id not in chat.content_ids(messages[0]), "content cannot end a turn"


def test_the_cpu_engines_log_probabilities_on_real_rows_equal_those_of_transformers() -> None:
    # Slots and prefill rows follow from the model's size.
    cfg = TransformersEngineConfig(engine="transformers", context=CONTEXT)
    check(answered(TransformersEngine(cfg, model(), threads=1)))


def test_full_fine_tuning_starts_at_the_reference_loss_and_lowers_it(loss: float, tmp_path: Path) -> None:
    report = train(tmp_path, epochs=2.0)
    assert [step for step, _ in report.loss] == [1, 2]
    assert report.loss[0][1] == pytest.approx(loss, abs=1e-3)
    assert report.loss[1][1] < loss - 0.05


def test_lora_starts_at_the_reference_loss_and_lowers_it(loss: float, tmp_path: Path) -> None:
    report = train(tmp_path, epochs=2.0, lr=2e-3, lora={"rank": 8, "alpha": 16})
    assert report.loss[0][1] == pytest.approx(loss, abs=1e-3)
    assert report.loss[1][1] < loss - 0.05
    assert not (tmp_path / "model/model.safetensors").exists()
    assert (full_weights(tmp_path / "model") / "model.safetensors").is_file()


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_with_two_processes_starts_at_the_reference_loss(stage: int, loss: float, tmp_path: Path) -> None:
    launcher = {"kind": "deepspeed", "processes": 2, "zero_stage": stage}
    report = train(tmp_path, launcher=launcher)
    assert [step for step, _ in report.loss] == [1]
    assert report.loss[0][1] == pytest.approx(loss, abs=1e-3)
    check_moved(tmp_path / "model")


def test_xtuner_starts_at_the_reference_loss(loss: float, tmp_path: Path) -> None:
    report = train(tmp_path, backend="xtuner")
    assert report.loss[0][1] == pytest.approx(loss, abs=1e-3)
    check_moved(tmp_path / "model")


def check_moved(folder: Path) -> None:
    """The step gives a complete model whose largest weight change is close to the learning rate."""
    from selfimprove.models.loading import load_causal_lm

    before, after = (load_causal_lm(path).state_dict() for path in (model(), folder))
    assert before.keys() == after.keys()
    moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
    assert 0.5e-4 < moved < 2e-4
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
