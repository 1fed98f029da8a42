"""Prompt texts, context window and dialogue limit (docs/rise.md, R2 to R4 and R14)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.records import Message
from selfimprove.envs.math.gsm8k import extract_strict
from selfimprove.methods.rise.prompts import degenerate, feedback, limit_dialogue, opening, visible


def pairs(count: Any) -> Any:
    return [(Message(role="assistant", content=f"a{i}"), Message(role="user", content=f"f{i}")) for i in range(count)]


def contents(messages: Any) -> Any:
    return [message.content for message in messages]


def flat(start: Any, count: Any) -> Any:
    return [*start, *(message for pair in pairs(count) for message in pair)]


def test_opening_is_the_worked_example_then_the_problem() -> None:
    system, reply, problem = opening("Q?")
    assert [message.role for message in (system, reply, problem)] == ["user", "assistant", "user"]
    assert r"\boxed{Your Answer}" in system.content
    assert extract_strict(reply.content) == "17"
    assert reply.content.startswith("Step 1:")
    assert opening("Q?", few_shot=False) == [problem]


def test_protocol_strings_are_verbatim() -> None:
    assert opening("Q?")[-1].content == (
        "Great job! You've successfully answered the question. Now, let's move on to the next one.\nQ?"
    )
    failure = "The answer is incorrect. Please try again. Here's the question: Q?"
    assert feedback(0.0, "Q?") == feedback(-1.0, "Q?") == feedback(None, "Q?") == failure
    assert feedback(1.0, "Q?") == "Great job! You've successfully answered the question."
    assert opening("{x} {0} {question}", False)[0].content.endswith("\n{x} {0} {question}")
    assert feedback(0.0, "{question}").endswith("question: {question}")


def test_forced_feedback_is_negative_for_correct_attempts_too() -> None:
    assert feedback(1.0, "Q?", forced_negative=True) == feedback(0.0, "Q?")


def test_window_counts_the_current_turn() -> None:
    start = opening("Q?")
    assert visible(start, pairs(4), 1) == start  # the original's [-0:] showed everything
    assert contents(visible(start, pairs(4), 2))[3:] == ["a3", "f3"]
    assert contents(visible(start, pairs(4), 3))[3:] == ["a2", "f2", "a3", "f3"]
    assert contents(visible(start, pairs(1), 5))[3:] == ["a0", "f0"]
    assert visible(start, pairs(4)) == flat(start, 4)
    assert visible(start, [], 2) == start
    with pytest.raises(ValueError):
        visible(start, [], 0)


@given(st.integers(0, 12), st.integers(1, 14), st.booleans())
def test_a_prompt_shows_the_last_min_of_t_and_k_minus_1_pairs(turn: int, window: int, few_shot: bool) -> None:
    start = opening("Q?", few_shot)
    shown = visible(start, pairs(turn), window)
    assert shown == [*start, *(m for pair in pairs(turn)[turn - min(turn, window - 1) :] for m in pair)]


def test_only_whole_pairs_are_dropped_and_the_problem_is_kept() -> None:
    start = opening("Q?")
    assert limit_dialogue(flat(start, 9), 3, 20) == flat(start, 9)  # 19 messages after the example
    trimmed = limit_dialogue(flat(start, 10), 3, 20)  # 21: the original cut the problem and began with a0
    assert trimmed[:3] == start
    assert contents(trimmed)[3:5] == ["a1", "f1"]
    assert limit_dialogue(flat(start, 3), 3, 1) == start
    assert limit_dialogue(flat(start, 3), 3, 2) == start
    with pytest.raises(ValueError):
        limit_dialogue(start, 3, 0)
    with pytest.raises(ValueError):
        limit_dialogue(flat(start, 2)[:-1], 3, 20)


@given(st.integers(0, 15), st.integers(1, 40), st.booleans())
def test_the_dialogue_limit_holds_and_roles_alternate(turn: int, limit: int, few_shot: bool) -> None:
    start = opening("Q?", few_shot)
    kept = limit_dialogue(flat(start, turn), len(start), limit)
    after_example = kept[len(start) - 1 :]
    assert len(after_example) <= limit
    assert [m.role for m in after_example] == ["user", "assistant"] * (len(after_example) // 2) + ["user"]
    assert kept[-1] == flat(start, turn)[-1] or kept == start
    assert len(after_example) + 2 > limit or len(kept) == len(start) + 2 * turn  # no more is cut than necessary


def test_a_token_over_150_times_or_over_300_characters_long_is_degenerate() -> None:
    assert not degenerate("the " * 150)
    assert degenerate("the " * 151)
    assert degenerate("The tHe THE " * 50 + "the")
    assert not degenerate("x" * 300)
    assert degenerate("x" * 301)
    assert degenerate("ok " + "x" * 301 + " ok")
    assert not degenerate("")
