"""Pages of made-up words and numbers, which can be predicted only by reading the page and copying from it."""

from random import Random

from selfimprove.envs.passages import Passage

_ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "st", "tr", "gl", "ch")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("", "n", "r", "s", "t", "l", "m", "ck")
_MARKS = (",", ";", " -", ":", "")


def repeats(draws: Random) -> list[Passage]:
    """Lines to be repeated."""
    lines = [_line(draws) for _ in range(draws.randint(2, 4))]
    return [Passage(f"Repeat: {line}", line, "copying") for line in lines]


def pairs(draws: Random) -> list[Passage]:
    """A list of words, each with a value, and questions that ask for a word's value or a value's word."""
    known = {_word(draws): str(draws.randint(1, 9999)) if draws.random() < 0.5 else _word(draws) for _ in range(8)}
    page = [Passage("\n".join(f"{word} is {value}." for word, value in known.items()))]
    for word in draws.sample(sorted(known), min(4, len(known))):
        by_value = list(known.values()).count(known[word]) == 1 and draws.random() < 0.3
        asked = f"Which word is {known[word]}?" if by_value else f"What is {word}?"
        page.append(Passage(asked, word if by_value else known[word], "lookup"))
    return page


def _line(draws: Random) -> str:
    parts = []
    for _ in range(draws.randint(3, 9)):
        part = str(draws.randint(0, 9999)) if draws.random() < 0.4 else _word(draws)
        parts.append(part + draws.choice(_MARKS))
    return " ".join(parts)


def _word(draws: Random) -> str:
    word = "".join(draws.choice(_ONSETS) + draws.choice(_VOWELS) for _ in range(draws.randint(1, 3)))
    word += draws.choice(_ENDS)
    return word.capitalize() if draws.random() < 0.3 else word
