r"""GSM8K: grade-school word problems with numerical answers (Cobbe et al. 2021, MIT licence).

An episode (the first row of the training file, two turns)::

    user       Great job! You've successfully answered the question. Now, let's move on to the next one.
               Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many
               clips did Natalia sell altogether in April and May?
    assistant  Half of 48 is 22. 48 + 22 = 70. The answer is \boxed{70}.
    user       The answer is incorrect. Please try again. Here's the question: Natalia sold clips to 48 of ...
    assistant  48 / 2 = 24 in May. 48 + 24 = 72. The answer is \boxed{72}.
    gold       Natalia sold 48/2 = <<48/2=24>>24 clips in May.
               Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.
               #### 72

Rewards: 1 right, 0 wrong, -1 no number in the last box (docs/rise.md, R6 to R8). Annotations such as ``<<48/2=24>>``
are plain text here; the original passed them to ``eval``.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import Grade, Problem
from selfimprove.envs.math import arithmetic
from selfimprove.envs.math.arithmetic import Difficulty, Split, generate
from selfimprove.envs.math.arithmetic_expert import expert
from selfimprove.envs.math.boxes import last_box
from selfimprove.envs.math.problem_files import problems_of

_ANNOTATION = re.compile(r"<<[^<>]*>>")
# Full stops after it end a sentence, unless what follows shows it is not a number: 1.2.3, 18./5, 1 1/2, 12 000, 5-6.
_GOLD = re.compile(
    r"(?:([-+]?)(?:\s*\$)?|\$\s*([-+]))\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?![. \t]*(?:[-+][ \t]*)?[0-9/:^*]|[eE][-+]?[0-9])"
)


def parse_gold(answer: str) -> str | None:
    """The signed number after the last ``####``, commas removed ("#### 1,080" -> "1080"); None if there is none.

    The original stopped at the comma and returned 1.
    """
    _, mark, tail = answer.rpartition("####")
    match = _GOLD.match(tail.replace(",", "").lstrip()) if mark else None
    return None if match is None else _canonical((match[1] or match[2] or "") + match[3])


def extract_strict(attempt: str) -> str | None:
    r"""The integer in the last box, commas removed; None if the box contains anything else, as in the original.

    A box is ``boxed{``, with or without a backslash, up to the first closing brace, and not empty: ``\boxed 18`` and
    ``\boxed {18}`` are not boxes, and ``\boxed{\boxed{18}}`` contains no integer. An integer is what ``int`` accepts,
    including ``1_000`` and digits of other scripts.
    """
    # Searching only up to the last closing brace, after which no box can be closed, keeps the time linear.
    boxes = _STRICT_BOX.findall(attempt[: attempt.rfind("}") + 1])
    number = boxes[-1].replace(",", "") if boxes else ""
    try:
        return str(int(number))
    except ValueError:
        return None


_STRICT_BOX = re.compile(r"boxed\{([^}]+)\}")
# A trailing \boxed{}, or \boxed before a word ("I used \boxed notation"), is no answer and replaces no earlier one.
_EMPTY_BOX = re.compile(r"(?:\\boxed\s*|boxed)\{\s*\}|\\boxed(?=\s+[A-Za-z]|[)\"'`*_])")
_PER_TEXT = re.compile(r"/\s*\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
# Around a number these only format it; around letters \textrm and the like are units, as \text is.
_FORMATTED = re.compile(
    r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt)|boldsymbol|bm|emph|underline)\s*\{([-+$\\\s]*\.?[0-9][^{}]*)\}"
)
_TEXT = re.compile(r"\\(?:text|textrm|textit|textbf|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_LENGTH = r"[cdkm]?m|in|ft|yd|mi|inch(?:es)?|feet|foot|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?"
# Only powers of a length: 18n^2 is a formula.
_POWER = re.compile(
    rf"(?<![A-Za-z\\])({_LENGTH})(\s*\}})?\s*(?:\^\s*(?:[23]|\{{\s*[23]\s*\}})(?![0-9])|[\u00b2\u00b3])", re.I
)
_DEGREES = re.compile(r"(?<=[0-9])\s*(?:\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\u00b0)")
_STYLE = re.compile(
    r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|displaystyle|textstyle|boldmath|bf|it|rm|approx|sim)(?![A-Za-z])"
    r"|\u2248"
)
_CURRENCY = re.compile(r"\\(?:pounds|euro|yen)(?![A-Za-z])|[\u00a2-\u00a5\u20a0-\u20c0]|\\?[$%]")
_REMARK = re.compile(r"(?<=[^\s(])\s*\(([^()0-9]*)\)$")
_TRAILING = " .,;"
_SPACES = re.compile(r"\\(?:[,!;: ]|q?quad(?![A-Za-z])|\Z)|[~\u00a0\u2009\u202f]")
_GROUPED = re.compile(r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3})(?![0-9,])")
_QUANTITY = re.compile(
    r"([-+]?)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*((?:/\s*(?=[^\W\d_]))?)((?:[^\W\d_](?:[^\W\d_]|[-./'\u2019 ])*)?)"
)
_NUMBER_WORDS = frozenset(
    [
        *("half", "halves", "quarter", "thirds", "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths"),
        *("tenths", "hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions"),
        *("trillion", "plus", "minus", "divided", "multiplied", "e", "k", "x", "\u03c0"),
    ]
)
_ORDINALS = frozenset(
    [
        *("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "twelfth", "twelfths"),
        *("hundredth", "hundredths", "thousandth", "thousandths"),
    ]
)
_CARDINALS = frozenset(
    [
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
        *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty"),
        *("forty", "fifty", "sixty", "seventy", "eighty", "ninety", "a", "an"),
    ]
)
# 18 boys and girls is a number with a unit; 18 and a half, 2 hours and fifteen minutes and 18 over x are not.
_JOINTS = frozenset(["and", "or", "over"])
# Words that look like a joint, an exponent, a variable or a fraction but are none: 18 left over, 18 e-mails, 18 x-rays,
# 18 half-dollars.
_HARMLESS = re.compile(r"(?<=\bleft[ -])over\b|\b(?:[ex]|half|quarter)-(?=[a-z]{2})", re.I)
# Grams, metres, hours, litres, seconds, tons, cents, days, feet, pence, weeks; another single letter is a variable: 5n.
# 18M means 18 million and has no unit.
_UNIT_LETTERS = frozenset("gmhlstcdfpw")
# After a slash: 60/h, 60 m/s have a unit; 18/t is a formula.
_PER_LETTERS = frozenset("hmsgl")
# Directly after the number: 5 squared is a formula, 5 cm squared has a unit.
_POWERS = frozenset(["squared", "cubed"])
# After a slash: 18/five is not 18.
_DIVISORS = frozenset(
    ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty", "pi", "sqrt"]
)


def extract_robust(attempt: str) -> str | None:
    r"""The number in the last box, without units and formatting; None for fractions, lists and formulas.

    Removed: currency signs, ``%``, thousands separators, ``\text{..}`` without a number, trailing unit words, remarks
    in parentheses and punctuation, degree marks, ``\approx``, and font commands (bold, italic, underlined, large).
    Decimals are accepted: ``\$1{,}080.50`` -> "1080.5", ``14.67 liters`` -> "14.67", ``\$18/hour`` -> "18", ``18
    cm^2`` -> "18", ``\text{18 eggs}`` -> "18"; ``18\text{ and a half}`` is not a number. The last non-empty box counts,
    but not ``\boxed`` before a word; the backslash may be missing. See docs/rise.md, R8.
    """
    box = last_box(_EMPTY_BOX.sub("", attempt))
    if box is None:
        return None
    # Like the original's int(), accept the digits of every script.
    box = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in box)
    # Thousands are written 1,080, 1{,}080, 1\,080, 1\;080, 1,\!080 or 1\!,080; any other comma separates a list.
    box = box.replace("\u2212", "-").replace("{,}", ",").replace(",\\!", ",").replace("\\!,", ",")
    box = re.sub(r"(?<=[0-9])\\[,!;:](?=[0-9]{3}(?![0-9]))", ",", box)
    # \text is a unit or a remark and is removed, except as a divisor: 18/\text{5} is not 18.
    box = _HARMLESS.sub("", box.replace("$^", "^"))
    box = _PER_TEXT.sub(r"/\1", _POWER.sub(r"\1\2", _SPACES.sub(" ", _STYLE.sub(" ", box))))
    box = _TEXT.sub(_unwrapped, _FORMATTED.sub(r"\1", box))
    box = _DEGREES.sub(" ", _CURRENCY.sub("", box)).strip().rstrip(_TRAILING)
    while len(box) > 1 and box[0] + box[-1] in ("{}", "()"):
        box = box[1:-1].strip().rstrip(_TRAILING)
    box = _REMARK.sub(r" \1", box).rstrip()
    box = _GROUPED.sub(lambda match: match[1].replace(",", ""), box)
    match = _QUANTITY.fullmatch(box)
    if match is None:
        return None
    words = re.split(r"[-./'\u2019 ]+", match[4].lower())
    if _NUMBER_WORDS & set(words) or words[0] in _POWERS or (match[3] and words[0] in _DIVISORS):
        return None
    if _join_a_number(words) or _name_a_fraction(words):
        return None
    if match[3] and len(words[0]) == 1 and words[0] not in _PER_LETTERS:
        return None
    if len(match[4]) == 1 and match[4].isascii() and (match[4].lower() not in _UNIT_LETTERS or match[4] == "M"):
        return None
    if any(unicodedata.numeric(letter, None) is not None for letter in match[4]):  # 18\u00bd, 5\u00b2, 5\u767e
        return None
    return _canonical(match[1] + match[2])


def _unwrapped(text: re.Match[str]) -> str:
    """The replacement of a ``\\text{..}``: its content if that specifies a quantity, else a space."""
    words = set(re.split(r"[^a-z]+", text[1].lower()))
    return f" {text[1]} " if (_NUMBER_WORDS | _ORDINALS | _JOINTS) & words or re.search(r"[0-9]", text[1]) else " "


def _name_a_fraction(words: list[str]) -> bool:
    """Whether the word after a number is the denominator of a fraction: 1 third of it, but not 12 fifth graders."""
    return words[0] in _ORDINALS and (len(words) == 1 or words[1] == "of")


def _join_a_number(words: list[str]) -> bool:
    """Whether the words after a number join another one to it, or end where one is expected."""
    ends = {words[0], words[-1]} & _JOINTS
    return bool(ends) or any(word in _JOINTS and after in _CARDINALS for word, after in pairwise(words))


def extract(attempt: str, mode: str = "robust") -> str | None:
    """The attempt's answer as a plain number: ``extract_strict`` or ``extract_robust``."""
    return extract_strict(attempt) if mode == "strict" else extract_robust(attempt)


def equivalent(a: str | None, b: str | None) -> bool:
    """Whether two answers are numerically equal ("18" and "18.0"); False if either is missing or not a number."""
    if a is None or b is None or not _is_number(a) or not _is_number(b):
        return False
    return Decimal(a) == Decimal(b)


def strip_annotations(answer: str) -> str:
    """The solution's text without calculator annotations (``<<48/2=24>>``) and without the ``####`` line."""
    return _ANNOTATION.sub("", answer.rpartition("####")[0]).rstrip()


@dataclass(frozen=True)
class Gsm8k:
    """The environment; ``strict`` extracts answers as the original did (integers only)."""

    strict: bool = False
    name: str = "gsm8k"

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Problems from rows {question, answer, id?}; without ``id``, the id is derived from the question's text."""
        lacking = "no number after '####' in the gold answer"
        return problems_of(rows, where, self.name, ("question", "answer"), parse_gold, lacking)

    def extract(self, attempt: str) -> str | None:
        """``extract`` in this environment's mode."""
        return extract(attempt, "strict" if self.strict else "robust")

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether both are numerically equal."""
        return equivalent(a, b)

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """1 right, 0 wrong, -1 no number in the last box."""
        answer = self.extract(attempt)
        if answer is None:
            return Grade(-1.0, None)
        return Grade(1.0 if equivalent(answer, problem.gold) else 0.0, answer)

    def demonstration(self, problem: Problem) -> str:
        """The gold steps without annotations, then ``The answer is \\boxed{N}.``"""
        return _attempt(strip_annotations(problem.answer), problem.gold)

    def problems(
        self, counts: Mapping[str, int], *, seed: int, difficulty: Mapping[str, Any] | None = None
    ) -> dict[str, list[Problem]]:
        """See ``MakesProblems``: arithmetic word problems; ``difficulty``: an ``arithmetic.Difficulty`` per split."""
        hard, made = difficulty or {}, {}
        for split in get_args(Split):
            count = counts.get(split, 0)
            drawn = generate(count, seed=seed, split=split, difficulty=hard.get(split, Difficulty())) if count else []
            rows = ({"id": one.id, **one.row()} for one in drawn)
            made[split] = self.load(enumerate(rows, start=1), Path(f"generated {split}"))
        return made

    def teach(self, problem: Problem, error_rate: float, key: object) -> str:
        """See ``Teaches``: an error is one arithmetic slip, carried through."""
        return expert(arithmetic.WordProblem(problem.question, problem.answer), error_rate=error_rate, key=key)

    def slip(self, problem: Problem, *key: object) -> str:
        """The gold steps with a wrong final number, in the box and at the number's last occurrence in the steps."""
        wrong = _misread(problem.gold, *key)
        steps = strip_annotations(problem.answer)
        written = list(re.finditer(rf"(?<![0-9.,]){re.escape(problem.gold)}(?![0-9]|[.,][0-9])", steps))
        if written:
            steps = steps[: written[-1].start()] + wrong + steps[written[-1].end() :]
        return _attempt(steps, wrong)


def _attempt(steps: str, answer: str) -> str:
    return f"{steps}\nThe answer is \\boxed{{{answer}}}." if steps else f"The answer is \\boxed{{{answer}}}."


def _misread(gold: str, *key: object) -> str:
    """A number other than ``gold``: off by 1, 2 or 10, or doubled."""
    value = Decimal(gold)
    with localcontext(prec=len(gold) + 2):  # keep every digit
        near = [value + delta for delta in (-10, -2, -1, 1, 2, 10)] + [value * 2]
    near = [number for number in near if number != value and (number >= 0 or value < 0)]
    return _canonical(f"{rng('slip', gold, *key).choice(near):f}")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)", text) is not None


def _canonical(text: str) -> str:
    """The canonical spelling of a number: "+018.50" -> "18.5", "-0" -> "0". Never with an exponent, never rounded."""
    sign = "-" if text.startswith("-") else ""
    whole, _, decimals = text.lstrip("+-").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return number if number == "0" else sign + number
