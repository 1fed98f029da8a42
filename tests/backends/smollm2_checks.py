"""A check for every engine on the real rows: log-probabilities equal transformers' to within 1e-3 in float32.

The same batch includes a simple word problem that the model can solve.
"""

from __future__ import annotations

import asyncio

import pytest

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from tests.backends.smollm2_rows import dialogues, model
from tests.backends.vllm_asking import Reference

WORDS = 24
CONTEXT = 256
SIMPLE = "Mia has 3 apples and buys 4 more. How many apples does she have now?"


def requests() -> list[Request]:
    """A greedy and a sampled answer for each row, then the simple problem with enough tokens for a complete answer."""
    simple = Request([Message(role="user", content=SIMPLE)], SeedKey(1, "simple"), max_tokens=60, temperature=0.0)
    rows = [
        Request(messages, SeedKey(1, f"row{number}"), max_tokens=WORDS, temperature=temperature)
        for number, messages in enumerate(dialogues())
        for temperature in (0.0, 1.0)
    ]
    return [*rows, simple]


def answered(engine: Engine) -> list[Completion]:
    async def work() -> list[Completion]:
        return [answer for [answer] in await asyncio.gather(*map(engine.generate, requests()))]

    return asyncio.run(work())


def check(completions: list[Completion]) -> None:
    """Compare each token's log-probability with a plain forward pass over the whole sequence, and check 3 + 4."""
    reference = Reference(model())
    for request, completion in zip(requests(), completions, strict=True):
        assert completion.token_ids is not None
        assert completion.logprobs is not None
        ids = [*completion.token_ids, reference.chat.end_id][: len(completion.logprobs)]
        prompt = list(reference.chat.encode(request.messages, add_generation_prompt=True).ids)
        table = reference.logprobs(prompt + ids)
        expected = [float(table[len(prompt) - 1 + place, token]) for place, token in enumerate(ids)]
        assert len(ids) == len(completion.logprobs) > 1
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)
        if request.temperature == 0.0:
            rows = table[len(prompt) - 1 : -1]
            assert all(float(row.max()) - value < 1e-3 for row, value in zip(rows, expected, strict=True)), "greedy"
    assert completions[-1].finish == "stop"
    assert "3 + 4 = 7" in completions[-1].text
