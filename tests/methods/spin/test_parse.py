"""The action parser: every text can be parsed, and a written round parses back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.methods.spin.parse import STOP, cut, parse

plain = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
thoughts = plain.filter(lambda text: "Action:" not in text and STOP not in f"\n{text}\n" and "Thought:" not in text)
names = plain.filter(lambda text: text.strip() and not set(text) & set("[\n") and STOP not in f"\n{text}")
arguments = plain.filter(lambda text: "\n" not in text)


@given(plain)
def test_any_text_can_be_parsed(text: Any) -> None:
    parsed = parse(text)
    assert parsed.tool is None or (parsed.tool == parsed.tool.strip().lower() != "")
    assert parsed.argument == parsed.argument.strip()
    assert "\n" not in parsed.action


@given(thoughts, names, arguments)
def test_a_written_round_parses_back(thought: Any, name: Any, argument: Any) -> None:
    parsed = parse(f"Thought: {thought}\nAction: {name}[{argument}]\nObservation: made up ]")
    assert (parsed.thought, parsed.tool) == (thought.strip(), name.strip().lower())
    assert parsed.argument == argument.strip()


@given(plain, plain)
def test_text_after_the_first_observation_is_ignored(before: Any, after: Any) -> None:
    text = f"{before}{STOP}{after}"
    assert parse(text) == parse(cut(text)) == parse(before.partition(STOP)[0])


@pytest.mark.parametrize(
    ("reply", "tool", "argument"),
    [
        (" t\nAction: search[Gate [novel] of 1745]", "search", "Gate [novel] of 1745"),  # the last bracket closes
        (" t\nAction: search[Gate [novel", "search", "Gate [novel"),  # no closing bracket: to the end of the line
        (" t\nAction: search[]", "search", ""),
        (" t\nAction: SEARCH [ Gate ] and more", "search", "Gate"),
        (" t\nAction: Finish[yes]", "finish", "yes"),
        (" t\nAction: search Gate", None, ""),  # no bracket
        (" t\nAction: [Gate]", None, ""),  # no name
        (" t\nAction:\nsearch[Gate]", None, ""),  # not on the line of the cue
        (" I cannot say.", None, ""),
        ("", None, ""),
        (" t\nAction: search[a]\nAction: finish[b]", "search", "a"),  # the first action counts
    ],
)
def test_tool_and_argument_are_parsed_from_a_reply(reply: str, tool: str | None, argument: str) -> None:
    parsed = parse(reply)
    assert (parsed.tool, parsed.argument) == (tool, argument)


def test_the_thought_ends_at_the_action_and_excludes_its_cue() -> None:
    assert parse("Thought: one\ntwo \nAction: search[x]").thought == "one\ntwo"
    assert parse(" one\nAction: search[x]").thought == "one"
    assert parse("Thought: no action").thought == "no action"
    assert parse("\n Thought: one\nAction: search[x]").thought == "one"


def test_an_action_is_recorded_as_its_line_without_the_blanks_around_it() -> None:
    assert parse(" t\nAction:  Search [x] now \n\nmore").action == "Search [x] now"
