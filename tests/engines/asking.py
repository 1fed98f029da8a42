"""Helpers for tests of the default engine: an engine with a tiny model, requests of many lengths, concurrent calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.models.loading import load_causal_lm

FEW_SHOT = [
    Message(role="user", content="Tom reads 12 pages a day for 5 days. How many pages does he read?"),
    Message(role="assistant", content="12 * 5 = 60. The answer is \\boxed{60}."),
]


def make_engine(folder: Path, *, model: object = None, **changes: object) -> TransformersEngine:
    """An engine over the folder's model, or over ``model``, a trainer's."""
    settings = {"engine": "transformers", "slots": 8, "context": 192, "prefill_rows": 4, "prefill_block": 16}
    cfg = TransformersEngineConfig.model_validate(settings | changes)
    return TransformersEngine(cfg, folder, threads=1, model=model)


def ask(index: int, *, turns: int = 0, **changes: object) -> Request:
    """A request for task ``index``, after ``turns`` worked examples."""
    question = Message(role="user", content=f"Mia has {index} apples and buys {7 * index}. How many has she now?")
    settings = {"seed": SeedKey(run=1, task=f"t{index}"), "max_tokens": 12 + index % 9}
    return Request(messages=[*FEW_SHOT * turns, question], **(settings | changes))  # type: ignore[arg-type]


def run(engine: TransformersEngine, requests: list[Request], at_once: int = 1000) -> list[list[Completion]]:
    async def everything() -> list[list[Completion]]:
        gate = asyncio.Semaphore(at_once)

        async def one(request: Request) -> list[Completion]:
            async with gate:
                return await engine.generate(request)

        return await asyncio.gather(*(one(request) for request in requests))

    return asyncio.run(everything())


def full_forward(folder: Path, prompt: list[int], drawn: list[int]) -> torch.Tensor:
    """Log-probabilities [len(drawn), vocabulary] of a plain forward pass without a cache."""
    model = load_causal_lm(folder)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + drawn])).logits[0]
    return torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]


def prompt_ids(engine: TransformersEngine, request: Request) -> list[int]:
    return engine.chat.encode(request.messages, add_generation_prompt=True).ids
