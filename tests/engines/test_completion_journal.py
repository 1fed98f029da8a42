"""A journaled engine: a finished request is not sent again; a failed one is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from selfimprove.core.journal import Journal
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request
from selfimprove.engines.journal import JournaledEngine

REQUEST = Request([Message(role="user", content="1 + 1?")], SeedKey(1, "task"), n=2)


class Dice:
    """Answers differently at every request; fails while ``failing`` is set."""

    def __init__(self) -> None:
        self.stats, self.closed, self.failing = EngineStats(), False, False

    async def generate(self, request: Request) -> list[Completion]:
        self.stats.requests += 1
        if self.failing:
            raise EngineError("died")
        return [
            Completion(f"é {self.stats.requests} {i}", "length", [1, 2], [-0.1, -1e-9 / 3]) for i in range(request.n)
        ]

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return max_tokens < 10

    async def close(self) -> None:
        self.closed = True


def ask(path: Path, inner: Dice, request: Request = REQUEST, name: str = "student") -> list[Completion]:
    with Journal(path) as journal:
        return asyncio.run(JournaledEngine(inner, journal, name).generate(request))


def test_a_finished_request_is_answered_from_the_journal_bit_for_bit(tmp_path: Path) -> None:
    inner = Dice()
    first = ask(tmp_path / "j", inner)
    assert ask(tmp_path / "j", inner) == first
    assert (inner.stats.requests, [len(first), first[0].logprobs]) == (1, [2, [-0.1, -1e-9 / 3]])


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [Message(role="user", content="1 + 2?")]},
        {"messages": [Message(role="system", content="1 + 1?")]},
        {"messages": [Message(role="user", content="1 + 1?", token_ids=[3])]},
        {"seed": SeedKey(2, "task")}, {"seed": SeedKey(1, "task", 1)}, {"seed": SeedKey(1, "task", 0, 1)},
        {"n": 1}, {"temperature": 0.5}, {"top_p": 0.9}, {"max_tokens": 5}, {"stop": ["x"]}, {"allowed": ["x"]},
    ],
)  # fmt: skip
def test_a_request_that_differs_in_any_field_is_sent_to_the_engine(tmp_path: Path, change: dict) -> None:
    inner = Dice()
    ask(tmp_path / "j", inner)
    ask(tmp_path / "j", inner, replace(REQUEST, **change))
    assert inner.stats.requests == 2
    ask(tmp_path / "j", inner, replace(REQUEST, **change))
    assert inner.stats.requests == 2


def test_engines_that_share_a_journal_are_kept_apart(tmp_path: Path) -> None:
    one, other = Dice(), Dice()
    ask(tmp_path / "j", one)
    ask(tmp_path / "j", other, name="teacher")
    assert (one.stats.requests, other.stats.requests) == (1, 1)


def test_a_failed_request_is_not_journaled(tmp_path: Path) -> None:
    inner = Dice()
    inner.failing = True
    with pytest.raises(EngineError):
        ask(tmp_path / "j", inner)
    inner.failing = False
    assert ask(tmp_path / "j", inner)[0].text == "é 2 0"


def test_stats_fits_and_close_are_those_of_the_inner_engine(tmp_path: Path) -> None:
    inner = Dice()
    with Journal(tmp_path / "j") as journal:
        engine = JournaledEngine(inner, journal, "student")
        assert engine.stats is inner.stats
        assert engine.fits([], 9)
        assert not engine.fits([], 10)
        asyncio.run(engine.close())
    assert inner.closed
