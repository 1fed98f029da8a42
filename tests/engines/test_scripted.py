"""The scripted engine: its answers depend only on the request and the sample's index."""

from __future__ import annotations

import asyncio

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.scripted import ScriptedEngine


def expert(request: Request, index: int) -> str:
    draw = rng(request.seed.at(index), "slip").randrange(1000)
    return f"{request.messages[-1].content} = {draw}\nQ: next"


def ask(task: str, **changes: object) -> Request:
    return Request([Message(role="user", content="1+1")], SeedKey(3, task), **changes)  # type: ignore[arg-type]


def test_answers_are_in_sample_order_and_depend_only_on_their_seed_keys() -> None:
    async def texts(*requests: Request) -> list[list[str]]:
        engine = ScriptedEngine(expert)
        answers = await asyncio.gather(*map(engine.generate, requests))
        return [[c.text for c in each] for each in answers]

    a, b = asyncio.run(texts(ask("a", n=4), ask("b", n=4)))
    assert len({*a, *b}) == 8
    assert asyncio.run(texts(ask("b", n=4), ask("a", n=4))) == [b, a], "the order of the work changes nothing"
    later = Request([Message(role="user", content="1+1")], SeedKey(3, "a", sample=2), n=2)
    assert asyncio.run(texts(later)) == [a[2:]], "samples asked for in two parts are the same samples"


def test_stop_strings_cut_answers_and_requests_are_counted() -> None:
    engine = ScriptedEngine(expert)
    completions = asyncio.run(engine.generate(ask("a", n=2, stop=["\nQ:", " = "])))
    assert completions == [Completion("1+1", "stop")] * 2
    assert (engine.stats.requests, engine.stats.completions, engine.stats.generated_tokens) == (1, 2, 0)


def test_an_answer_that_is_not_allowed_is_an_error() -> None:
    engine = ScriptedEngine(lambda request, index: "north")
    assert asyncio.run(engine.generate(ask("a", allowed=["north", "south"])))[0].text == "north"
    with pytest.raises(UserError, match="'north'"):
        asyncio.run(engine.generate(ask("a", allowed=["south"])))
