"""Which label a chat model's answer names (docs/reflect-rl.md, L31)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.labels import LABELS
from selfimprove.methods.reflect_rl.teacher import (
    read_label,
)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("3", "3"),
        (" 3. ", "3"),
        ("3. cat a.py", "3"),
        ("**12**", "12"),
        ("Action 12", "12"),
        ("Action-12", "12"),
        ("I choose action: 12, since it helps.", "12"),
        ("The answer is 3", "3"),
        ("b", "b"),
        ("Action: b", "b"),
        ('My action: "b".', "b"),
        ("**Action:** (b) go north", "b"),
        ("Action b", None),  # a letter needs the colon, since it can also be a word
        ("An action: b or not, it is 3", "3"),
        ("Action 13", None),
        ("Action 120", None),
        ("03", None),
        ("It costs 1.5 now", None),
        ("a good idea", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_labels_are_read_exactly_or_not_at_all(text: str, label: str | None) -> None:
    assert read_label(text, ("0", "1", "3", "12", "b")) == label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("There are 4 options; my action should be 3", "3"),
        ("Of the 6 moves, the best action is 3.", "3"),
        ("I move 2 cells. Action number 4", "4"),
        ("ACTION\n\n(4), since 2 is a wall", "4"),
        ("Two actions, 1 and 2, but I take 5", "1"),  # "actions" is another word: the first number counts
        ("I take 5. That is my last action", "5"),
        ("I would not take action 2, it hits a wall.\nAction: 3", "3"),
        ("The right action is clear: the passenger is 2 rows north.\nAction 1", "1"),
        ("The next action takes me 3 cells. **Action:** 0", "0"),
        ("Action3", "3"),
        ("Action 12", None),
        ("4 cells on, I take action 12, or 3", None),  # the first number is the choice, listed or not
        ("2 cells on. Action: z", None),
        ("My action costs 1.5, it is 3", "3"),
        ("My action costs -1, it is 3", "3"),
        ("My action costs 1,000, it is 3", "3"),
        ("1. The passenger is north.\n2. Plan: go there.\n3. Action: 4", "4"),
        ("2: since action 3 hits a wall", "3"),
        ("2. This action takes me 3 cells", "2"),
        ("1. It is north. 2. Action 12", None),
        ("Action: 1,2", "1"),
        ("action 4,5", "4"),
        ("3,4", "3"),
        ("Action: 12,3", None),
        ("Action: 3.0. The passenger is 1 row away.", None),  # the choice is no label, and is not replaced
        ("2. Action: 3rd, since 1 is a wall", None),
        ("After action 2, Action: -3", None),
        ("1.5", None),
        ("-3", None),
        ("3: right", "3"),
        ("3- move west", "3"),
        ("3->move west", "3"),
        ("I am at 2. Action 3- move west", "3"),
        ("Action: 3- move west", "3"),
        ("Action_3", "3"),
        ("I see a 2-way street, so 4", "4"),
        ("Action: 0-5", None),
    ],
)
def test_the_label_is_the_first_whole_number_after_the_word_action(text: str, label: str | None) -> None:
    assert read_label(text, ("0", "1", "2", "3", "4", "5")) == label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("The action a player takes is 3", "3"),
        ("Action: I would take 3", "3"),
        ("action: a-priori 3", "3"),
        ("Action: a", "a"),
        ("Action: a\nI hope so", "a"),
        ("Action: 'a' since b is read", "a"),
        ("Action: a. cat 3.py", "a"),
        ("**Action a**: cat 3.py", "a"),
        ("The action a player takes: 3", "3"),
        ("Action: a - cat 3.py", "a"),
        ("a. cat 3.py", "a"),
        ("A", "A"),
        ("I think", None),
    ],
)
def test_a_letter_is_a_label_only_alone_or_beside_action_and_a_colon(text: str, label: str | None) -> None:
    assert read_label(text, LABELS["full"]) == label


@given(st.text())
def test_any_text_is_read_as_a_listed_label_or_none(text: str) -> None:
    assert read_label(text, ("0", "12", "z")) in (None, "0", "12", "z")
