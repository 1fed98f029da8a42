"""The classifier two-sample test: episodes are told apart if, and only if, they differ."""

from __future__ import annotations

from random import Random

from selfimprove.core.records import Message, Pair
from selfimprove.methods.spin.told_apart import told_apart

NAMES = ("Mara", "Ilo", "Bela", "Quin", "Tess", "Vito", "Zora", "Egon")


def pair(number: int, written: tuple[str, str], *, read: str = "") -> Pair:
    def said(text: str) -> list[Message]:
        looked_up = [Message(role="user", content=read)] if read else []
        return [*looked_up, Message(role="assistant", content=text, weight=1.0)]

    prompt = [Message(role="user", content=f"Question {number}?")]
    return Pair(id=f"q{number}", prompt=prompt, real=said(written[0]), generated=said(written[1]))


def test_episodes_of_one_source_are_told_apart_only_at_chance_level() -> None:
    draws = Random(10)
    words = [f"word{i}" for i in range(40)]
    pairs = [pair(n, (" ".join(draws.sample(words, 8)), " ".join(draws.sample(words, 8)))) for n in range(600)]
    found = told_apart(pairs)
    assert found["n"] == 600
    assert abs(found["mean"] - 0.5) < 3 * found["se"]


def test_a_pair_of_equal_episodes_counts_one_half() -> None:
    assert told_apart([pair(n, ("I need it.", "I need it.")) for n in range(20)])["mean"] == 0.5


def test_a_different_wording_is_detected() -> None:
    pairs = [pair(n, (f"I look for thing{n}.", f"Let me see thing{n}.")) for n in range(50)]
    assert told_apart(pairs)["mean"] == 1.0


def test_a_miscopied_name_is_detected_if_the_correct_one_was_read() -> None:
    draws = Random(5)
    pairs = []
    for number in range(200):
        right, wrong = draws.sample(NAMES, 2)
        written = (f"The author is {right}.", f"The author is {wrong}.")
        pairs.append(pair(number, written, read=f"A novel by {right}."))
    assert told_apart(pairs)["mean"] == 1.0
    unread = [one.model_copy(update={"real": one.real[1:], "generated": one.generated[1:]}) for one in pairs]
    assert told_apart(unread)["mean"] == 0.5


def test_the_share_does_not_depend_on_the_order_of_the_pairs() -> None:
    draws = Random(7)
    pairs = [pair(n, (" ".join(draws.choices("abcd", k=4)), " ".join(draws.choices("abce", k=4)))) for n in range(80)]
    assert told_apart(pairs[::-1])["mean"] == told_apart(pairs)["mean"]


def test_a_different_order_of_the_same_pairs_of_words_is_detected() -> None:
    pairs = [pair(n, ("a b a c a", "a c a b a")) for n in range(50)]  # they differ only in groups of three words
    assert told_apart(pairs)["mean"] == 1.0


def test_one_different_word_is_detected_even_if_it_is_the_last() -> None:
    pairs = [pair(n, (f"the book thing{n} here", f"the book thing{n} there")) for n in range(50)]
    assert told_apart(pairs)["mean"] == 1.0


def test_groups_of_more_than_three_words_are_not_compared() -> None:
    pairs = [pair(n, ("a a a b a b b b a a", "a a a b b b a b a a")) for n in range(50)]  # equal groups of three
    assert told_apart(pairs)["mean"] == 0.5


def test_words_of_a_single_pair_tell_nothing_however_many_there_are() -> None:
    pairs = [pair(n, (f"gate{n} silver{n} novel{n}", f"book{n}")) for n in range(50)]
    assert told_apart(pairs)["mean"] == 0.5


def test_a_miscopied_number_is_detected_if_the_correct_one_was_read() -> None:
    draws = Random(6)
    pairs = []
    for number in range(100):
        right, wrong = draws.sample(range(1000, 2000), 2)
        written = (f"It was in {right}.", f"It was in {wrong}.")
        pairs.append(pair(number, written, read=f"Founded in {right}."))
    assert told_apart(pairs)["mean"] == 1.0
