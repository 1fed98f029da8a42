"""Units and formatting of a GSM8K attempt's number in robust mode (docs/rise.md, R8)."""

from __future__ import annotations

import pytest

from selfimprove.envs.math.gsm8k import extract_robust


@pytest.mark.parametrize(
    ("box", "robust"),
    [
        (r"18 \text{ apples and oranges}", "18"),
        ("18 boys or girls", "18"),
        (r"\$18\text{ per boy and per girl}", "18"),
        ("18 miles over the limit", "18"),
        (r"18\text{ left over}", "18"),
        ("18 eggs left over", "18"),
        (r"18\text{ e-books}", "18"),
        (r"18\text{ x-rays}", "18"),
        ("18 X-rays", "18"),
        ("18x-y", None),
        ("18e-b", None),
        ("18 or more", None),
        ("18 over x", None),
        ("18 dollars and", None),
        (r"18\text{ dollars and }20\text{ cents}", None),
        ("2 hours and fifteen minutes", None),
        (r"2 \text{ hours and a quarter}", None),
        ("3 weeks and a day", None),
    ],
)
def test_a_unit_may_contain_and_or_over_unless_they_join_a_second_number(box: str, robust: str | None) -> None:
    assert extract_robust(rf"So \boxed{{{box}}}.") == robust


@pytest.mark.parametrize(
    ("box", "robust"),
    [
        ("18 half-dollars", "18"),
        (r"18\text{ half-gallons}", "18"),
        ("18 quarter-pounders", "18"),
        ("18 Half-pound bags", "18"),
        ("18 half dollars", None),
        ("18 half", None),
        ("18-half", None),
        ("18 and half-dollars", None),
        (r"18\text{ and one-half cups}", None),
        ("18 and one-half-cups", None),
    ],
)
def test_half_and_quarter_with_a_hyphen_belong_to_the_unit(box: str, robust: str | None) -> None:
    assert extract_robust(rf"So \boxed{{{box}}}.") == robust


@pytest.mark.parametrize(
    ("box", "robust"),
    [
        (r"60\text{ km}/\text{h}", "60"),
        (r"\$60/\text{h}", "60"),
        (r"60 \text{ m} / \text{s}", "60"),
        ("60/h", "60"),
        ("60 / x", None),
        (r"60/\text{n}", None),
        ("60/n eggs", None),
        ("60/t", None),
        ("60/5", None),
    ],
)
def test_a_unit_after_a_slash_may_be_a_letter_but_a_variable_may_not(box: str, robust: str | None) -> None:
    assert extract_robust(rf"So \boxed{{{box}}}.") == robust


@pytest.mark.parametrize("sign", ["$", r"\$", "\u00a2", "\u00a3", "\u20ac", "\u00a5", "\u20b9", "\u20a9"])
def test_every_currency_sign_is_removed_before_and_after_the_number(sign: str) -> None:
    for box in (f"{sign}60", f"60{sign}", f"60 {sign}", rf"60\text{{ {sign}}}"):
        assert extract_robust(rf"So \boxed{{{box}}}.") == "60"


@pytest.mark.parametrize(
    ("box", "robust"),
    [
        ("18,", "18"),
        ("18;", "18"),
        ("1,080,", "1080"),
        ("1,08,", None),
        ("18\\ ", "18"),
        (r"\$18\text{ eggs}\ ", "18"),
        (r"\textbf{18}", "18"),
        (r"\mathbf{18}", "18"),
        (r"\mathrm{18}", "18"),
        (r"-\mathbf{\$1{,}080}\text{ km}", "-1080"),
        (r"\mathbf{18}\mathrm{km}", "18"),
        (r"\boldsymbol{18}", "18"),
        (r"\bm{-1{,}080}\text{ km}", "-1080"),
        (r"\mathsf{18}", "18"),
        (r"\texttt{\$18}", "18"),
        (r"\emph{18}", "18"),
        (r"\underline{18.50}", "18.5"),
        (r"\boldsymbol{18n}", None),
        (r"18/\bm{5}", None),
        (r"\mathbf{x}", None),
        (r"\mathbf{1/2}", None),
        ("18/hour", "18"),
        (r"\$18/\text{hour}", "18"),
        (r"18\text{ km}\,/\,\text{hour}", "18"),
        ("18/5", None),
        ("18 / 5 hours", None),
        (r"18/\text{5}", None),
        (r"18/\mathbf{5}", None),
        ("18/five", None),
        ("18/x", None),
        ("18-5", None),
        ("18 cm^2", "18"),
        ("18\\text{ cm$^2$}", "18"),
        ("18 ft²", "18"),
        ("18\\text{ m}³", "18"),
        ("18n²", None),
        ("18 square meters^{2}", "18"),
        (r"18\text{ cm}^2", "18"),
        (r"18\,\mathrm{m}^{3}", "18"),
        ("18^2", None),
        ("18n", None),
        ("18 y", None),
        ("18 m", "18"),
        ("18L", "18"),
        ("18 a.m.", "18"),
        ("18\u5143", "18"),
        ("18 children\u2019s books", "18"),
        ("18 divided by two", None),
        ("18 plus two", None),
        ("18x^2", None),
        ("18n^2", None),
        ("18 cm^25", None),
        ("18 cm^2 + 4", None),
        (r"18^\circ", "18"),
        (r"18^{\circ}\text{C}", "18"),
        ("18\u00b0", "18"),
        (r"18^\circ 30'", None),
    ],
)
def test_robust_mode_reads_formatted_numbers_but_no_formulas(box: str, robust: str | None) -> None:
    assert extract_robust(rf"So \boxed{{{box}}}.") == robust
