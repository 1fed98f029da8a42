"""Single-token decisions in vLLM: in float32 on a CPU, they equal those of the default engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import Message
from selfimprove.engines.base import Completion, EngineError, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.vllm.engine import IDS_AT_ONCE, VllmEngine
from tests.backends.vllm_asking import CONTEXT, QUESTION, ask, run, together
from tests.support.sentences import refused_with

pytestmark = pytest.mark.backend

LABELS = [*"0123456789abcxyz"]


@pytest.fixture(scope="module")
def default(vllm_dir: Path) -> Iterator[TransformersEngine]:
    cfg = TransformersEngineConfig(engine="transformers", slots=8, prefill_rows=8, context=CONTEXT)
    engine = TransformersEngine(cfg, vllm_dir, threads=1)
    yield engine
    run(engine.close())


def decision(task: str, **changes: Any) -> Request:
    return ask(task, **{"max_tokens": 1, "choice": True, "allowed": LABELS, **changes})


def check(ours: list[list[Completion]], theirs: list[list[Completion]]) -> None:
    """The same token for the same prompt, with log-probabilities and entropy within 1e-4."""
    for mine, other in zip([c for cs in ours for c in cs], [c for cs in theirs for c in cs], strict=True):
        assert (mine.text, mine.finish, mine.token_ids) == (other.text, other.finish, other.token_ids)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert mine.choice is not None
        assert other.choice is not None
        assert (mine.choice.token, mine.choice.prompt_ids) == (other.choice.token, other.choice.prompt_ids)
        assert mine.choice.logprob == pytest.approx(other.choice.logprob, abs=1e-4)
        assert mine.choice.entropy == pytest.approx(other.choice.entropy, abs=1e-4)


def test_decisions_equal_those_of_the_default_engine(engine: VllmEngine, default: TransformersEngine) -> None:
    requests = [
        decision(f"{i}", n=1 + i % 3, temperature=(1.0, 0.0, 0.5, 2.0)[i % 4], **{"top_p": 0.7} if i % 5 == 0 else {})
        for i in range(40)
    ]
    requests += [decision(f"k {i}", top_k=3, n=4) for i in range(5)]
    answers = together(engine, *requests)
    check(answers, together(default, *requests))
    assert len({c.text for cs in answers for c in cs}) > 5, "the draws differ"


def test_more_labels_than_vllm_accepts_per_request_still_give_one_decision(
    engine: VllmEngine, default: TransformersEngine
) -> None:
    chat = engine.chat
    texts = [chat.decode([token]) for token in range(chat.vocab_size)]
    labels = [
        text
        for token, text in enumerate(texts)
        if text and chat.content_ids(Message(role="assistant", content=text)) == [token]
    ]
    assert len(labels) > IDS_AT_ONCE
    requests = [decision(f"{i}", allowed=labels[::-1], temperature=3.0) for i in range(30)]
    answers = together(engine, *requests)
    check(answers, together(default, *requests))
    chosen = [labels.index(c.text) for [c] in answers]
    assert min(chosen) < IDS_AT_ONCE <= max(chosen), "labels of both requests were drawn"


def test_decisions_and_completions_in_one_batch_do_not_affect_each_other(
    engine: VllmEngine, default: TransformersEngine
) -> None:
    decisions = [decision(f"{i}") for i in range(8)]
    others = [ask(f"free {i}", max_tokens=4 + i, allowed=["north", "go west"] if i % 2 else None) for i in range(8)]
    alone = together(engine, *others)
    mixed = together(engine, *(one for pair in zip(decisions, others, strict=True) for one in pair))
    assert mixed[1::2] == alone
    check(mixed[::2], together(default, *decisions))


def test_a_decision_that_exceeds_the_context_drops_the_prompts_first_tokens(
    engine: VllmEngine, default: TransformersEngine
) -> None:
    request = decision("long", messages=[Message(role="user", content=QUESTION * 10)], cut_left=True)
    answers = together(engine, request)
    check(answers, together(default, request))
    [[completion]] = answers
    assert completion.choice is not None
    assert len(completion.choice.prompt_ids) == CONTEXT - 1


def test_an_invalid_choice_fails_without_affecting_others(engine: VllmEngine) -> None:
    async def work() -> list[Any]:
        requests = [
            decision("two tokens", allowed=["3 + 4", "7"]), decision("long", max_tokens=2),
            decision("twice", allowed=["7", "7"]), decision("good"),
        ]  # fmt: skip
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    *bad, good = run(work())
    assert all(isinstance(error, EngineError) for error in bad), bad
    assert len(good) == 1


def test_a_choice_from_the_whole_vocabulary_is_refused_in_one_sentence(engine: VllmEngine) -> None:
    with refused_with("whole vocabulary; limit the choice to labels"):
        together(engine, decision("free", allowed=None))
