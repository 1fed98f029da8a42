"""Helpers of the tests of training: settings of a small run, the run, and a plain forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.records import Example
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune
from selfimprove.training.objective import weighted_nll

PARAMS = FinetuneParams(
    epochs=2, batch_size=8, micro_batch_tokens=400, row_tokens=200, max_length=300, lr=1e-3, logging_steps=1
)
Maker = Callable[..., list[Example]]


def tuned(**changes: Any) -> FinetuneParams:
    return FinetuneParams.model_validate({**PARAMS.model_dump(), **changes})


def run(tiny: Path, examples: list[Example], folder: Path, params: FinetuneParams, **more: Any) -> Any:
    options = {"scratch": folder / "scratch", "seed": 3, "threads": 1, **more}
    return finetune(tiny, examples, folder / "model", params, **options)


def load(folder: Path, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)


def loss_and_gradients(model: Any, batches: list[dict[str, torch.Tensor]]) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    total = 0.0
    for inputs in batches:
        given = {key: value for key, value in inputs.items() if key != "coefficients"}
        loss = weighted_nll(model(**given, use_cache=False).logits, inputs["input_ids"], inputs["coefficients"])
        loss.backward()
        total += float(loss.detach())
    return total, [parameter.grad.clone() for parameter in model.parameters()]
