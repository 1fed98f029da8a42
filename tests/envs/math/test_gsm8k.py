"""The gsm8k environment (docs/rise.md, R6 to R8)."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Problem
from selfimprove.envs.math.gsm8k import (
    Gsm8k,
    equivalent,
    extract,
    extract_robust,
    extract_strict,
    parse_gold,
    strip_annotations,
)
from selfimprove.envs.math.world import make_env

CLIPS = Problem(
    id="clips",
    question="Natalia sold clips ...",
    answer="Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 clips.\n#### 72",
    gold="72",
)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("steps\n#### 72", "72"),
        ("#### 1,080", "1080"),  # the original read 1
        ("#### 1,234,567", "1234567"),
        ("#### -7", "-7"),
        ("#### +7", "7"),
        ("#### 3.50", "3.5"),
        ("#### .5", "0.5"),
        ("#### $18", "18"),
        ("#### $-18", "-18"),
        ("#### -$18", "-18"),
        ("#### -$-18", None),
        ("#### 18.", "18"),
        ("#### 18.5.", "18.5"),
        ("#### 18...", "18"),
        ("#### 18./5", None),
        ("#### 18 dollars", "18"),
        ("#### 1\n#### 2", "2"),
        ("####72", "72"),
        ("72", None),
        ("####", None),
        ("#### none", None),
        ("#### 1/2", None),
        ("#### 12/5", None),
        ("#### 1 1/2", None),
        ("#### 1 / 2", None),
        ("#### 12 000", None),
        ("#### 5-6", None),
        ("#### 5 - 6", None),
        ("#### 5 (of 6)", "5"),
        ("#### 5\n6 eggs", "5"),
        ("#### 3:30", None),
        ("#### 1.2.3", None),
        ("#### 2e5", None),
        ("#### <<1+1=2>>", None),  # annotations are never evaluated
    ],
)
def test_gold_numbers_are_parsed_with_commas_signs_and_units_but_not_as_expressions(
    answer: str, gold: str | None
) -> None:
    assert parse_gold(answer) == gold


@pytest.mark.parametrize(
    ("box", "strict", "robust"),
    [
        ("18", "18", "18"),
        (" 18 ", "18", "18"),
        ("-18", "-18", "-18"),
        ("1,080", "1080", "1080"),
        ("18.0", None, "18"),  # unparsable in the original
        (r"\$18", None, "18"),
        ("$18", None, "18"),
        ("14.67 liters", None, "14.67"),
        ("14.67", None, "14.67"),
        (".5", None, "0.5"),
        (r"50\%", None, "50"),
        ("50%", None, "50"),
        (r"1{,}080", None, "1080"),
        (r"1\,080", None, "1080"),
        (r"1,\!080", None, "1080"),
        (r"\$1\!,234\!,567.80", None, "1234567.8"),
        (r"\$1,234,567.80", None, "1234567.8"),
        (r"-\$5", None, "-5"),
        (r"18\text{ dollars}", None, "18"),
        (r"\text{about }18", None, "18"),
        (r"18\ \mathrm{km/h}", None, "18"),
        ("18 km/h", None, "18"),
        ("18 pounds per week.", None, "18"),
        ("{18}", None, "18"),
        ("1e5", None, None),
        (r"\frac{1}{2}", None, None),
        ("1/2", None, None),
        ("5 1/2", None, None),
        ("5/8 cups", None, None),
        ("5,6", "56", None),
        ("5, 6", None, None),
        ("5 and 6", None, None),
        ("2 million", None, None),
        (r"\$2M", None, None),
        ("2 m", None, "2"),
        ("3 + 4", None, None),
        ("3 x 4", None, None),
        ("twelve", None, None),
        (r"\text{18}", None, "18"),
        (r"\text{18 eggs}", None, "18"),
        (r"\text{\$18 }", None, "18"),
        (r"18 \text{ 5}", None, None),
        (r"18 \text{ and a half}", None, None),
        (r"18 and a half", None, None),
        ("1 third", None, None),
        ("1 third of the cake", None, None),
        (r"1\text{ fourth}", None, None),
        ("3 hundredths", None, None),
        (r"12\text{ fifth graders}", None, "12"),
        ("12 fifth graders", None, "12"),
        ("18½", None, None),
        ("18 ½", None, None),
        ("5²", None, None),
        ("5百", None, None),
        ("18π", None, None),
        ("3 fifths", None, None),
        ("5 squared", None, None),
        ("5 cm squared", None, "5"),
        ("18 hundreds", None, None),
        ("18k", None, None),
        ("18 quarters", None, "18"),
        (r"18\text{ million}", None, None),
        (r"18\text{ to }20", None, None),
        ("(18)", None, "18"),
        ("(18", None, None),
        ("(3, 4)", None, None),
        ("18 (eggs)", None, "18"),
        ("18 (about half)", None, None),
        ("18 (or 20)", None, None),
        ("£18", None, "18"),
        ("€18", None, "18"),
        ("18 €", None, "18"),
        (r"\approx 18", None, "18"),
        (r"\large 18", None, "18"),
        (r"\Large{18}", None, "18"),
        (r"\largest 18", None, None),
        ("NaN", None, None),
        ("inf", None, None),
        ("١٨", "18", "18"),
        ("１８ eggs", None, "18"),
        ("1_000", "1000", None),
    ],
)
def test_answers_are_extracted_in_strict_and_robust_mode(box: str, strict: str | None, robust: str | None) -> None:
    attempt = rf"Some steps. The answer is \boxed{{{box}}}."
    assert extract_strict(attempt) == extract(attempt, "strict") == strict
    assert extract_robust(attempt) == extract(attempt) == robust


def test_the_last_box_decides_even_if_it_cannot_be_parsed() -> None:
    assert extract_robust(r"\boxed{18} or \boxed{dunno}") is None
    assert extract_strict(r"\boxed{18} or \boxed{18.0}") is None
    assert extract_robust("#### 72") is None  # only the gold answer uses ####


@pytest.mark.parametrize(
    ("attempt", "strict", "robust"),
    [
        ("boxed{18}", "18", "18"),
        (r"\fboxed{18}", "18", "18"),
        (r"\boxed{7} or boxed{18}", "18", "18"),
        (r"\boxed 18", None, "18"),
        (r"\boxed {18}", None, "18"),
        (r"\boxed{18} so \boxed{}", "18", "18"),
        (r"\boxed{18} so \boxed{ }", None, "18"),
        (r"\boxed{18\quad}", None, "18"),
        (r"\boxed{18\qquad\text{cm}}", None, "18"),
        (r"\boxed{18\;000}", None, "18000"),
        (r"\boxed{18\:000}", None, "18000"),
        (r"\boxed{18\;19}", None, None),
        (r"\boxed{\boxed{18}}", None, "18"),
        (r"\boxed{18 \boxed{}}", None, "18"),
        (r"\boxed{+0,018}", "18", "18"),
        (r"\boxed{{18}}", None, "18"),
        (r"\boxed{7} and \boxed{18", "7", "7"),
        (r"\boxed{7} and \boxed{18 \boxed{9}", None, "9"),
        ("it is boxed 18", None, None),
        ("boxed{}", None, None),
    ],
)
def test_which_box_counts_in_strict_and_robust_mode(attempt: str, strict: str | None, robust: str | None) -> None:
    assert extract_strict(attempt) == strict
    assert extract_robust(attempt) == robust


@pytest.mark.parametrize(
    "prose", [r"I put it in a \boxed command.", r"(with \boxed)", r"in `\boxed`", "in \\boxed\nas asked", r"\boxed{}"]
)
def test_mentioning_the_boxed_command_in_prose_does_not_discard_the_answer(prose: str) -> None:
    assert extract_robust(rf"So \boxed{{18}}. {prose}") == extract_strict(rf"So \boxed{{18}}. {prose}") == "18"
    assert extract_robust(prose) is None


@given(st.lists(st.sampled_from([*r"0189١８²−,+-_ .}{\\", "\n", "boxed{", "18", "}"]), max_size=30).map("".join))
@example("boxed{\x1c18}")
def test_strict_mode_reads_what_the_originals_pattern_and_int_read(text: str) -> None:
    boxes = re.findall(r"boxed\{([^}]+)\}", text)
    try:
        original = str(int(boxes[-1].replace(",", "")))
    except (IndexError, ValueError):
        original = None
    assert extract_strict(text) == original


@pytest.mark.parametrize(
    ("attempt", "reward"),
    [
        (r"\boxed{72}", 1.0),
        (r"\boxed{72.00}", 1.0),
        (r"\boxed{\$72}", 1.0),
        (r"\boxed{71}", 0.0),
        (r"\boxed{7}", 0.0),
        ("72", -1.0),
        (r"\boxed{}", -1.0),
        (r"\boxed{72", -1.0),
        ("", -1.0),
    ],
)
def test_rewards_are_minus_one_zero_or_one(attempt: str, reward: float) -> None:
    assert Gsm8k().grade(attempt, CLIPS).reward == reward


@pytest.mark.parametrize("tail", [" " * 500_000, "-" + " " * 500_000, "$" * 500_000, "1." * 250_000])
def test_a_long_gold_answer_without_a_number_is_rejected_quickly(tail: str) -> None:
    assert parse_gold(f"#### {tail}x") is None


def test_a_boxed_one_does_not_match_a_gold_of_1080() -> None:
    problem = Problem("p", "q", "#### 1,080", parse_gold("#### 1,080") or "")
    assert Gsm8k().grade(r"\boxed{1}", problem).reward == 0
    assert Gsm8k().grade(r"\boxed{1,080}", problem).reward == 1


def test_equality_is_numeric_and_a_missing_answer_equals_nothing() -> None:
    assert equivalent("18", "18.0")
    assert equivalent("-0", "0")
    assert not equivalent("18", "18.000000000000000000000000000000000001")
    assert not equivalent(None, None)
    assert not equivalent("18", None)
    assert not equivalent("x", "x")


def test_a_demonstration_ends_with_the_box_and_contains_no_annotations() -> None:
    text = Gsm8k().demonstration(CLIPS)
    assert text == ("Natalia sold 48/2 = 24 clips in May.\nShe sold 48+24 = 72 clips.\nThe answer is \\boxed{72}.")
    assert strip_annotations("a <<1+1=2>>2\n#### 2") == "a 2"


def test_a_slip_is_wrong_reproducible_and_replaces_the_final_result() -> None:
    env = Gsm8k()
    slips = [env.slip(CLIPS, 0, sample) for sample in range(20)]
    assert slips == [env.slip(CLIPS, 0, sample) for sample in range(20)]
    assert len(set(slips)) > 2
    assert all(env.grade(slip, CLIPS).reward == 0 for slip in slips)
    assert all("48+24 = 72" not in slip and "48/2 = 24" in slip for slip in slips)


@pytest.mark.parametrize("gold", ["0", "1", "-3", "2.5", "1000000", "9" * 28, "1" * 40, "0.0000001", "-0.0000003"])
def test_a_slip_never_equals_the_gold_number(gold: str) -> None:
    problem = Problem("p", "q", f"So it is {gold}.\n#### {gold}", gold)
    for key in range(40):
        assert Gsm8k().grade(Gsm8k().slip(problem, key), problem).reward == 0


def test_load_names_file_and_line_of_an_unparsable_gold_answer() -> None:
    rows = [(1, {"question": "q", "answer": "#### 1"}), (2, {"question": "q2", "answer": "#### one"})]
    with pytest.raises(UserError, match=r"my\.jsonl, line 2: no number after '####'"):
        Gsm8k().load(rows, Path("my.jsonl"))
    with pytest.raises(UserError, match=r"my\.jsonl, line 7: field 'answer'"):
        Gsm8k().load([(7, {"question": "q", "answer": 3})], Path("my.jsonl"))


def test_ids_come_from_content_and_survive_reordering() -> None:
    rows = [(i, {"question": f"q{i}", "answer": f"#### {i}"}) for i in range(1, 5)]
    forwards = {p.question: p.id for p in Gsm8k().load(rows, Path("f"))}
    assert forwards == {p.question: p.id for p in Gsm8k().load(rows[::-1], Path("f"))}
    assert len(set(forwards.values())) == 4
    twice = Gsm8k().load([rows[0], rows[0], (9, {"id": "own", **rows[1][1]})], Path("f"))
    assert [p.id for p in twice] == [forwards["q1"], forwards["q1"] + "-2", "own"]
    own = Gsm8k().load([(i, {"id": name, **rows[0][1]}) for i, name in enumerate(["x", "x-2", "x"])], Path("f"))
    assert [p.id for p in own] == ["x", "x-2", "x-3"]
    numbered = Gsm8k().load([(i, {"id": number, **rows[0][1]}) for i, number in enumerate([7, 0, 7])], Path("f"))
    assert [p.id for p in numbered] == ["7", "0", "7-2"]
    for wrong in (True, 1.5, ["x"]):
        with pytest.raises(UserError, match="f, line 3: field 'id' must be text or an integer"):
            Gsm8k().load([(3, {"id": wrong, **rows[0][1]})], Path("f"))


def test_make_env_selects_the_extraction_mode_and_refuses_unknown_names_and_options() -> None:
    assert make_env("gsm8k").grade(r"\boxed{1.0}", Problem("i", "q", "#### 1", "1")).reward == 1
    assert make_env("gsm8k", "strict").grade(r"\boxed{1.0}", Problem("i", "q", "#### 1", "1")).reward == -1
    for arguments in (("MATH",), ("gsm8k", "loose"), ("gsm8k", "robust", "extended"), ("math", "strict")):
        with pytest.raises(UserError, match=r"^env\."):
            make_env(*arguments)


numbers = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9)


@given(st.text(max_size=80) | st.text(alphabet=r"\boxed{}0123456789.,$% -/text", max_size=80))
def test_any_text_is_graded_without_error(text: str) -> None:
    for strict in (True, False):
        grade = Gsm8k(strict).grade(text, CLIPS)
        assert (grade.reward == -1) == (grade.answer is None)
        if grade.answer is not None:  # boxing and extracting the answer again gives the same answer
            assert Gsm8k(strict).extract(rf"\boxed{{{grade.answer}}}") == grade.answer


@given(numbers, st.sampled_from(["{}", r"\${}", "{}%", "{} apples", r"{}\text{{ m}}", "${}$"]))
def test_a_number_in_any_formatting_equals_the_gold_number(number: Any, dress: str) -> None:
    gold = parse_gold(f"#### {number:,}")
    assert gold is not None
    assert Decimal(gold) == number
    assert equivalent(extract_robust(rf"\boxed{{{dress.format(f'{number:,}')}}}"), gold)


def test_adversarial_boxes_do_not_take_exponential_time() -> None:
    assert extract_robust(r"\boxed{1 " + "a" * 5000 + "!}") is None
    assert extract_robust(r"\boxed{" + "1" * 5000 + "!}") is None
    for piece in ("boxed{", r"\boxed{", "boxed{}", r"\mathbf{", "/ ", " m", "1^", r"\text{", " "):
        for text in (piece * 20000, r"\boxed{18" + piece * 20000 + "!}"):
            assert extract_strict(text) is None
            assert extract_robust(text) in (None, "18")
