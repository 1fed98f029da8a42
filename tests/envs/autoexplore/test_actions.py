"""AutoExplore's labels, and which action a response selects (docs/reflect-rl.md, L30 and L31)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.autoexplore.actions import LABELS, Action, choose, label


def test_actions_get_the_labels_in_order() -> None:
    choices = label([Action("cat", str(i)) for i in range(252)])
    assert [choice.label for choice in choices] == list(LABELS)


LISTED = (
    "2",
    " 2 ",
    "2.",
    "\t2",
    "2\t",
    "\r\n2\xa0",
    "2. cd core",
    "2.5",
    "2..",
    ".2",
    'cat "a b.py"',
    '\tcat "a b.py"\n',
)


NOT_LISTED = (
    *("02", "Choice 2", "", " ", ".", "2 .", "2 . cd", ". 2"),
    *("2 cd core", "2,", "(2)", "\uff12", "3", "cat a b.py"),
)


@pytest.mark.parametrize(
    ("response", "chosen"), [*((text, 2) for text in LISTED), *((text, None) for text in NOT_LISTED)]
)
def test_accepted_labels(response: Any, chosen: Any) -> None:
    actions = [Action("cd", ".."), Action("cd", "core"), Action("cat", "a b.py")]
    assert choose(label(actions), response) == (None if chosen is None else actions[chosen])


@given(st.text(max_size=20))
def test_any_response_selects_one_of_the_actions_or_none(response: str) -> None:
    actions = [Action("cd", ".."), Action("cat", "2"), Action("id", "0")]
    assert choose(label(actions), response) in (*actions, None)


def test_shuffled_labels_are_drawn_from_all_labels_and_actions_keep_their_order(make_env: Any) -> None:
    env, plain = make_env(shuffle_action=True), make_env()
    plain.reset(0)
    drawn = []
    for episode in range(30):
        env.reset(0, episode)
        assert [choice.action for choice in env.choices()] == [choice.action for choice in plain.choices()]
        labels = [choice.label for choice in env.choices()]
        assert len(set(labels)) == len(labels)
        assert env.choices() == env.choices()
        drawn.append(tuple(labels))
    assert len(set(drawn)) == 30
    seen = {name for labels in drawn for name in labels}
    assert seen <= set(LABELS)
    assert len(seen) > 120  # drawn from all 252, not from the first eight
    env.reset(0)
    before = [choice.label for choice in env.choices()]
    assert env.step(next(c.label for c in env.choices() if c.action.text == "cd core")).info["command"] == "cd core"
    env.reset(0)
    env.step("nonsense")  # the next step has the same actions, but new labels
    assert [choice.label for choice in env.choices()] != before
    assert [c.label for c in make_env(shuffle_action=True, seed=1).choices()] != before
