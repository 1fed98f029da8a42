"""Helpers for vLLM tests: an engine on a tiny model in float32, requests, and transformers as the reference.

The reference is transformers' forward pass over the whole sequence, without cache or batching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm.engine import VllmEngine

T = TypeVar("T")
QUESTION = "Mia has 3 apples and buys 4 more. How many apples does she have now?"
FEEDBACK = "Your answer is incorrect. Please try again!"
CONTEXT = 256
"""Maximum tokens of a prompt and its answer: all positions of the tiny model."""


def config(**changes: object) -> VllmEngineConfig:
    settings = {"engine": "vllm", "context": CONTEXT, "dtype": "float32", "max_sequences": 32}
    return VllmEngineConfig.model_validate(settings | changes)


def build(model_dir: Path) -> VllmEngine:
    return VllmEngine(config(), model_dir)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def ask(task: str = "t", *, sample: int = 0, messages: list[Message] | None = None, **changes: Any) -> Request:
    messages = messages or [Message(role="user", content=QUESTION)]
    return Request(messages, SeedKey(5, task, sample=sample), **{"max_tokens": 40, **changes})


def together(engine: Engine, *requests: Request) -> list[list[Completion]]:
    async def work() -> list[list[Completion]]:
        return await asyncio.gather(*map(engine.generate, requests))

    return run(work())


class Reference:
    """transformers, one sequence at a time."""

    def __init__(self, model_dir: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.chat = ChatFormat.load(model_dir)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    def logprobs(self, ids: list[int]) -> Any:
        """Natural log-probabilities of the next token after each of ``ids`` [tokens, vocabulary]."""
        with self._torch.inference_mode():
            return self._model(self._torch.tensor([ids])).logits[0].log_softmax(-1)

    def greedy(self, messages: list[Message], max_tokens: int) -> list[int]:
        ids = list(self.chat.encode(messages, add_generation_prompt=True).ids)
        answer: list[int] = []
        while len(answer) < max_tokens:
            token = int(self.logprobs(ids)[-1].argmax())
            if token in self.chat.stop_ids:
                break
            ids.append(token)
            answer.append(token)
        return answer


def check_logprobs(reference: Reference, request: Request, completion: Completion) -> None:
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    prompt = list(reference.chat.encode(request.messages, add_generation_prompt=True).ids)
    answer = [*completion.token_ids]
    if len(completion.logprobs) == len(answer) + 1:
        answer.append(reference.chat.end_id)
        assert completion.finish == "stop"
    table = reference.logprobs(prompt + answer)
    expected = [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)]
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)
