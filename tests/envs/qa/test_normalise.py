import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.qa.hotpotqa import grade
from selfimprove.envs.qa.normalise import exact_match, f1, normalise

texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["the", "a", "an", "yes", "no", "noanswer", "cat", "hat", ".", "A.", "theme"]), max_size=6
).map(" ".join)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("The Cat", "cat"),
        ("the  cat,\tan hat!", "cat hat"),
        ("theme an analysis", "theme analysis"),  # whole words only
        ("a.b", "ab"),  # punctuation is deleted before articles: no word "a" is left
        ("a-the", "athe"),
        ("the-a cat", "thea cat"),
        ("A", ""),
        ("U.S.A.", "usa"),
        ("naïve café", "naïve café"),  # no Unicode folding
        ("“The” hat", "“ ” hat"),  # only ASCII punctuation is deleted
        ("the_cat", "thecat"),
        ("", ""),
    ],
)
def test_the_normaliser_handles_case_punctuation_articles_and_spaces_in_this_order(raw: str, normal: str) -> None:
    assert normalise(raw) == normal


@given(texts)
def test_normalised_text_has_no_capitals_ascii_punctuation_or_extra_spaces(text: Any) -> None:
    normal = normalise(text)
    assert normal == " ".join(normal.split())
    assert not set(normal) & set(string.punctuation + string.ascii_uppercase)


@pytest.mark.parametrize(
    ("answer", "gold", "mark"),
    [
        ("Tolma", "tolma", 1.0),
        ("the town Tolma", "Tolma", 2 / 3),
        ("Tolma Tolma", "Tolma", 2 / 3),  # multisets: a word counts as often as it occurs in both
        ("a b c", "d", 0.0),
        ("yes", "Yes.", 1.0),
        ("yes", "no", 0.0),
        ("yes it is", "yes", 0.0),  # one side is yes: no partial credit
        ("yes", "yes it is", 0.0),
        ("noanswer", "yes", 0.0),
        ("noanswer given", "noanswer", 0.0),
        ("noanswer", "noanswer given", 0.0),
        ("noanswer", "noanswer", 1.0),
        ("no answer", "no", 0.0),
        ("no one", "no one else", 0.8),  # the guard applies to whole answers
    ],
)
def test_f1_with_the_guard_for_yes_no_and_noanswer(answer: str, gold: str, mark: Any) -> None:
    assert f1(answer, gold) == pytest.approx(mark)


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_answer_is_never_rewarded(empty: str) -> None:
    for gold in ("", "Tolma", "the", " "):
        mark = grade(empty, gold)
        assert (mark.reward, mark.em, mark.f1) == (0.0, False, 0.0)


def test_if_both_sides_normalise_to_nothing_the_raw_texts_are_compared() -> None:
    assert grade("The", "the").reward == 1
    assert grade("The", "the").f1 == 1
    assert (grade("The", "the").pred, grade("The", "the").gt) == ("", "")  # the normal forms are reported
    assert grade("A", "the").reward == 0  # both normalise to nothing, but differ
    assert grade("A", "the").f1 == 0
    assert grade("?", "!").reward == 0
    assert grade("- ", "-").reward == grade("The ", "the").f1 == 0
    assert grade("the", "cat").reward == 0


@given(texts, texts)
def test_reward_exact_match_and_f1_are_consistent(answer: Any, gold: Any) -> None:
    mark = grade(answer, gold)
    assert mark.reward == float(mark.em) == float(exact_match(answer, gold))
    assert 0 <= mark.f1 <= 1
    assert mark.f1 == 1 or not mark.em
    assert not answer.strip() or grade(answer, answer).em
    assert mark.f1 == pytest.approx(f1(gold, answer)) or not gold.strip() or not answer.strip()
