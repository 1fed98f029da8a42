"""The answer box: the last complete one, with balanced braces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.math.boxes import brace_pairs, last_box, last_box_span

MATH = ("boxed", "fbox")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("no box at all", None),
        (r"\boxed{5}", "5"),
        (r"first \boxed{5}, no: \boxed{6}.", "6"),
        (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}"),
        (r"\boxed{\frac{\sqrt{3}}{9}} ok", r"\frac{\sqrt{3}}{9}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{ }", None),
        ("boxed{7}", "7"),
        (r"\boxed{5} or boxed{7}", "7"),
        ("boxed 7", None),
        (r"\boxed{}", None),
        (r"\boxed{1} then cut off \boxed{2", "1"),
        (r"\boxed{1", None),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),
        (r"\boxed{\boxed{3}}", "3"),
        (r"$x = \boxed 5$", "5"),
        (r"$x = \boxed 5 + y$.", "5 + y"),
        (r"$$x = \boxed 5 + y$$.", "5 + y"),
        (r"\[x = \boxed 5 + y\]", "5 + y"),
        (r"\(a\) and \(x = \boxed 5 + y\)", "5 + y"),
        (r"\(a\) and $b$, so \boxed 5 + y", "5"),
        (r"so it is \boxed 7, as said", "7"),
        (r"so it is \boxed 7", "7"),
        (r"costs \$3, so \boxed 8 in all", "8"),
        (r"\boxedtext{5}", None),
        ("\\boxed", None),
        (r"\boxed{a\\}", "a\\\\"),
    ],
)
def test_the_last_complete_box_is_read(text: str, content: str | None) -> None:
    assert last_box(text) == content


@pytest.mark.parametrize("prose", [
    r". I used \boxed notation.", r", see \boxed format above", r" (in \boxed)", r" as in `\boxed`", r' "\boxed"',
    r"** with \boxed**", r" and \fbox notation",
])  # fmt: skip
def test_a_commands_name_in_prose_replaces_no_box(prose: str) -> None:
    assert last_box(r"Answer: $\boxed{5}$" + prose, MATH) == "5"
    assert last_box(rf"\boxed{{5}}{prose}", MATH) == "5"


def test_a_later_bare_box_with_a_number_or_a_formula_replaces_one_with_braces() -> None:
    assert last_box(r"\boxed{5}, no: \boxed 6", MATH) == "6"
    assert last_box(r"\boxed{5}, no: \boxed \pi", MATH) == r"\pi"
    assert last_box(r"\boxed{5}, no: $\boxed x$", MATH) == "x"
    assert last_box(r"the answer is \boxed x", MATH) == "x"


def test_fbox_counts_for_math_only() -> None:
    text = r"\boxed{1}, rather \fbox{2}"
    assert last_box(text, MATH) == "2"
    assert last_box(text) == "1"


@given(st.text(alphabet=r"\{}boxedf $1.,\n", max_size=60))
def test_any_text_is_read_without_error_and_span_and_content_agree(text: str) -> None:
    content = last_box(text, MATH)
    span = last_box_span(text, MATH)
    assert content is None or content == content.strip() != ""
    if span is not None:
        start, inner, inner_end, end = span
        assert text[start] in "\\b"
        assert start < inner <= inner_end <= end <= len(text)
        assert content == (text[inner:inner_end].strip() or None)


@given(st.recursive(st.sampled_from(["x", "1", r"\frac", " "]), lambda inner: inner.map(lambda s: "{" + s + "}")))
def test_the_content_of_a_box_is_read_back(content: Any) -> None:
    text = rf"\boxed{{0}} so \boxed{{{content}}}."
    assert last_box(text) == (content.strip() or None)
    opening = text.rindex(r"\boxed{") + len(r"\boxed")
    assert brace_pairs(text)[opening] == opening + len(content) + 1


def test_a_long_text_of_unclosed_boxes_is_read_in_reasonable_time() -> None:
    assert last_box("\\boxed{" * 20000) is None
    assert last_box("\\boxed{5}" + "\\boxed{" * 20000) == "5"


def test_a_long_text_of_empty_boxes_is_read_in_reasonable_time() -> None:
    assert last_box("\\boxed{5}" + "\\boxed$ " * 200_000) == "5"
