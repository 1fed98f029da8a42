"""The opening, and the truncation of an over-long dialogue (docs/agent-r.md, A2 and A5)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.records import Message
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.methods.agent_r.prompts import opening, trim


class Narrow(ScriptedEngine):
    """An engine whose context holds ``room`` characters, including the completion."""

    def __init__(self, room: Any) -> None:
        super().__init__(lambda request, index: "")
        self.room = room

    def fits(self, messages: Any, max_tokens: Any) -> bool:
        return sum(len(message.content) for message in messages) + max_tokens <= self.room


def dialogue(pairs: Any) -> Any:
    start = opening("Do.", "Here.")
    for k in range(pairs):
        start += [Message(role="assistant", content=f"a{k}"), Message(role="user", content=f"o{k}")]
    return start


HEAD = sum(len(message.content) for message in opening("Do.", "Here."))


def test_the_opening_is_the_original_s() -> None:
    assert [(m.role, m.content) for m in opening("Do.", "Here,\nnow.")] == [
        ("system", "You are a helpful assistant."),
        ("user", "Do."),
        ("assistant", "Ok."),
        ("user", "Here,\nnow."),
    ]
    assert all(message.weight == 0 for message in opening("", ""))


@pytest.mark.parametrize(
    ("room", "shown"), [(99, [0, 1, 2]), (12, [0, 1, 2]), (11, [1, 2]), (7, [2]), (4, [2]), (3, [])]
)
def test_the_oldest_action_is_dropped_together_with_its_own_observation(room: int, shown: Any) -> None:
    messages = dialogue(3)
    kept = trim(messages, Narrow(HEAD + 5 + room), 5)
    assert [m.content for m in kept[4:]] == [text for k in shown for text in (f"a{k}", f"o{k}")]
    assert kept[:4] == opening("Do.", "Here.")
    assert len(messages) == 10  # the history itself is not cut


def test_a_single_pair_that_does_not_fit_is_dropped() -> None:
    assert trim(dialogue(1), Narrow(HEAD + 5), 5) == opening("Do.", "Here.")


@given(st.integers(0, 4), st.integers(0, 80))
def test_short_histories_are_cut_to_the_opening_and_the_latest_pairs(pairs: int, room: int) -> None:
    messages, engine = dialogue(pairs), Narrow(room)
    kept = trim(messages, engine, 5)
    assert kept == messages[:4] + messages[len(messages) - (len(kept) - 4) :]
    assert engine.fits(kept, 5) or len(kept) == 4
    assert len(kept) % 2 == 0
