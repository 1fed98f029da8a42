"""The default profile truncates no RISE dialogue, whatever the model writes: all prompts and examples fit.

The longest prompts are built from the default's own problems and measured with its own tokenizer. Every attempt in them
is as long as ``max_tokens`` allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.prompts import feedback, limit_dialogue, opening
from selfimprove.methods.rise.tasks import build_splits
from tests.support.profiles import profile

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def longest(question: str, turns: int, max_tokens: int, few_shot: bool, chat: ChatFormat) -> tuple[list[Message], int]:
    """The prompt of the last of ``turns`` turns, and its number of tokens including room for the answer."""
    messages = opening(question, few_shot)
    for _ in range(turns - 1):
        messages.append(Message(role="assistant", content="", token_ids=[chat.end_id] * max_tokens, finish="stop"))
        messages.append(Message(role="user", content=feedback(0, question)))
    return messages, len(chat.encode(messages, add_generation_prompt=True).ids) + max_tokens


@pytest.mark.parametrize("seed", [17, 18, 19])
def test_all_prompts_and_examples_of_the_default_profile_fit(seed: int, tmp_path: Path) -> None:
    values: dict[str, Any] = profile("default")
    rise = RiseParams.model_validate(values["rise"])
    env, student = rise.env.make(), rise.engines["student"]
    assert isinstance(student, TransformersEngineConfig)
    splits = build_splits(rise.tasks, env, seed=seed, download=tmp_path, mirror=None)
    chat = ChatFormat.load(ROOT / values["base"]["rise"]["model"])

    for name, iteration in rise.iterations.items():
        asked = iteration.generate
        for problem in asked.select(splits["train"]):
            turns = min(asked.context_window or asked.max_turns, asked.max_turns)
            messages, tokens = longest(problem.question, turns, asked.max_tokens, rise.env.few_shot, chat)
            assert tokens <= student.context
            assert tokens + 1 <= rise.rows[name].train.max_length  # the end-of-turn token is trained on, too
            assert limit_dialogue(messages, len(opening("", rise.env.few_shot)), asked.dialogue_limit) == messages
    cfg = rise.evaluate
    for problem in splits[cfg.split]:
        turns = min(cfg.context_window, cfg.max_turns)
        messages, tokens = longest(problem.question, turns, cfg.max_tokens, rise.env.few_shot, chat)
        assert tokens <= student.context
        assert limit_dialogue(messages, len(opening("", rise.env.few_shot)), cfg.dialogue_limit) == messages
