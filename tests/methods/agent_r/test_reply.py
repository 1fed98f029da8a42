"""The parser of replies, shared by search and evaluation (docs/agent-r.md, A3)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.methods.agent_r.reply import clean_observation, parse_action, stored_reply


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Thought: I need wood.\nAction: get 1 oak log", "get 1 oak log"),
        ("Thought 1: I need wood.\nAction 1: get 1 oak log\n", "get 1 oak log"),
        ("Action: a\nAction 1: b\nAction: c", "b"),  # the numbered marker takes precedence
        ("Action: a\nObservation: no.\nAction: b", "b"),
        ("Action 1: a\nAction 1: b", "b"),
        ("Action: 12. go north", "go north"),
        ("Action: 3.get 1 log", "get 1 log"),
        ("Action: get 3. log", "get 3. log"),
        ("Action: 3.5", "3.5"),  # a decimal number is no list number
        ("Action: 2. 3.5", "3.5"),
        ("Action:\n\n  inventory  \nObservation: much", "inventory"),
        ("Action: inventory\r\nThought: next", "inventory"),
        ("Action: 1.\nlook", "look"),
        ("Thought: nothing.\nAction:", ""),
        ("Action: Action:", ""),
        ("Action 1: Action: look", "Action: look"),
        ("I would look around.\nlook", "look"),  # no marker: the last line
        ("12. look", "12. look"),  # its number stays
        ("Action 2: look", "Action 2: look"),
        ("action: look", "action: look"),
        ("  look  ", "look"),
        ("", ""),
        ("\x00\x07\x1b[2J", "\x00\x07\x1b[2J"),
    ],
)
def test_the_action_of_a_reply_is_parsed(reply: str, action: str) -> None:
    assert parse_action(reply) == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("x" * 10_000, "x" * 10_000),
        ("Action: " + "y" * 9_992, "y" * 9_992),
        ("Action: " * 1250, ""),
        ("\n" * 10_000, ""),
        ("Action: " + "\n" * 9_991 + "z", "z"),
    ],
)
def test_a_reply_of_ten_thousand_characters_is_parsed(reply: str, action: str) -> None:
    assert len(reply) == 10_000
    assert parse_action(reply) == action


@pytest.mark.parametrize(
    ("reply", "stored"),
    [
        (" Thought 1: So.\nAction 1: look \n", "Thought: So.\nAction: look"),
        ("Thought 1: a Thought 1: b", "Thought: a Thought: b"),
        ("Thought 2: So.\nAction 2: look", "Thought 2: So.\nAction 2: look"),
        ("Thought: So.\nAction: look", "Thought: So.\nAction: look"),
        ("Action: look\nThought: I see.", "Action: look\nThought: I see."),  # text after the action is kept
        ("Action 1: look \nAction: jump", "Action: look"),  # unless it would replace the action
        ("\n", ""),
    ],
)
def test_the_stored_reply_drops_the_number_1_of_markers_and_keeps_the_colon(reply: str, stored: str) -> None:
    assert stored_reply(reply) == stored


pieces = st.lists(
    st.one_of(
        st.sampled_from(["Action 1:", "Action:", "Thought 1:", "Thought:", "Action 1", ":", "\n", " ", "7. ", "look"]),
        st.text(max_size=5),
    ),
    max_size=12,
).map("".join)


@given(pieces)
def test_the_action_of_any_reply_is_one_line_and_occurs_in_the_reply(reply: Any) -> None:
    action = parse_action(reply)
    assert "\n" not in action
    assert action in reply


@given(pieces)
def test_storing_a_reply_is_idempotent_and_leaves_no_marker_numbered_1(reply: Any) -> None:
    stored = stored_reply(reply)
    assert stored_reply(stored) == stored
    assert "Action 1:" not in stored
    assert "Thought 1:" not in stored


@given(st.text(alphabet="look.\n\t "), st.text(alphabet="go 1.\n"), st.sampled_from(["Action:", "Action 1:"]))
def test_a_reply_and_its_stored_form_have_the_same_action(thought: str, action: str, marker: str) -> None:
    reply = f"Thought 1: {thought}{marker} {action}"
    assert parse_action(stored_reply(reply)) == parse_action(reply)


@given(st.text(alphabet="look.\n\t "), st.text(alphabet="go 1."), pieces)
def test_a_stored_reply_keeps_its_action_whatever_the_model_invented_after_it(
    thought: str, action: str, invented: str
) -> None:
    reply = f"Thought 1: {thought}Action 1:\n g{action}\n{invented.replace('Action 1:', 'Action:')}"
    assert parse_action(stored_reply(reply)) == parse_action(reply)


def test_a_stored_reply_ends_with_its_action_if_a_later_marker_would_replace_it() -> None:
    invented = "Thought 1: x\nAction 1: look\nObservation 1: ...\nThought 2: y\nAction: jump"
    assert stored_reply(invented) == "Thought: x\nAction: look"
    assert stored_reply(invented.replace(" 1:", ":")).endswith("\nAction: jump")
    assert stored_reply("Action 1:\n\n look\nAction: jump") == "Action:\n\n look"


@pytest.mark.parametrize("invented", ["Action: " * 100_000, "Action: jump\n" * 100_000])
def test_a_stored_reply_is_cut_in_linear_time(invented: str) -> None:
    """In quadratic time, this took minutes."""
    assert stored_reply(f"Action 1: look\n{invented}") == "Action: look"
    assert stored_reply(f"{invented}\nAction 1: look\nAction: go").endswith("\nAction: look")
    stored = stored_reply("Action 1: " + "Action: " * 100_000)
    assert stored == ("Action: " + "Action: " * 100_000).strip()


@given(st.text())
def test_a_cleaned_observation_is_one_line_of_the_same_length(text: str) -> None:
    cleaned = clean_observation(text)
    assert len(cleaned) == len(text)
    assert all(new == (" " if old in "\n\t" else old) for old, new in zip(text, cleaned, strict=True))
