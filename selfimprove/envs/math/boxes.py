r"""Finds the answer box: the last ``\boxed{...}`` of an attempt, with balanced braces.

``so $x = \boxed{\frac{\sqrt{3}}{2}}$, not \boxed{1`` contains the answer ``\frac{\sqrt{3}}{2}``; the original's regular
expression handled only one level of braces. An unclosed box is ignored.
"""

import re
from bisect import bisect_left
from functools import cache, cached_property


def last_box(text: str, commands: tuple[str, ...] = ("boxed",)) -> str | None:
    r"""The content of the last complete box, stripped; None if there is no box or it is empty.

    ``commands``: the accepted commands, without the backslash. Also accepted: ``boxed{5}``, as in the original, and
    ``\boxed 5``, whose content is the rest of the formula or, outside of formulas, the next word. In prose, a word
    without a digit ("in \boxed notation") counts only if there is no other box.
    """
    span = last_box_span(text, commands)
    return None if span is None else text[span[1] : span[2]].strip() or None


def last_box_span(text: str, commands: tuple[str, ...]) -> tuple[int, int, int, int] | None:
    """(start, content start, content end, end) of the box that ``last_box`` reads, or None."""
    pairs, in_formula = brace_pairs(text), _Formulas(text)
    word = None
    for command in reversed(list(_pattern(commands).finditer(text))):
        start = command.end()
        while start < len(text) and text[start].isspace():
            start += 1
        if start < len(text) and text[start] == "{":
            if start in pairs:
                return command.start(), start + 1, pairs[start], pairs[start] + 1
        elif (end := _bare_end(text, start, within := in_formula.at(command.start()))) > start:
            found = command.start(), start, end, end
            if within or _NUMERIC.search(text, start, end):
                return found
            word = word or found
    return word


def brace_pairs(text: str) -> dict[int, int]:
    r"""Position of each opening brace -> position of its closing brace, in one pass; ``\{`` and ``\}`` do not count."""
    pairs: dict[int, int] = {}
    open_braces: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            pairs[open_braces.pop()] = match.start()
    return pairs


_NUMERIC = re.compile(r"\d|\\[A-Za-z]")
_DOLLARS = re.compile(r"(?<!\\)\$\$?")
_OPENED = re.compile(r"(?<!\\)\\([(\[)\]])")
_FORMULA_END = re.compile(r"(?<!\\)\$|\\[)\]]|\n|\Z")
_WORD_END = re.compile(r"(?<!\\)\$|\\[)\]]|\s|\Z")


class _Formulas:
    """Determines whether a position in a text is inside a formula; scans the text lazily and only once."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _dollars(self) -> list[int]:
        return [match.start() for match in _DOLLARS.finditer(self._text)]

    @cached_property
    def _opened(self) -> list[tuple[int, str]]:
        return [(match.start(), match[1]) for match in _OPENED.finditer(self._text)]

    def at(self, place: int) -> bool:
        """Whether an odd number of dollar signs precedes ``place``, or the last bracket before it is an opening one."""
        if bisect_left(self._dollars, place) % 2 == 1:
            return True
        before = bisect_left(self._opened, place, key=lambda found: found[0])
        return before > 0 and self._opened[before - 1][1] in "(["


def _bare_end(text: str, start: int, in_formula: bool) -> int:
    match = (_FORMULA_END if in_formula else _WORD_END).search(text, start)
    end = match.start() if match else len(text)
    while end > start and text[end - 1] in " \t.,;:":
        end -= 1
    return end


@cache
def _pattern(commands: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\\(?:" + "|".join(commands) + r")(?![A-Za-z])|(?<!\\)boxed(?=\{)")
