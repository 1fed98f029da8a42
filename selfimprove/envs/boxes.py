r"""Finding the answer box: the last ``\boxed{...}`` of an attempt, braces balanced.

``so $x = \boxed{\frac{\sqrt{3}}{2}}$, not \boxed{1`` holds the answer ``\frac{\sqrt{3}}{2}``: the original's regular
expression stopped at the first closing brace but one (RISE spec §5, trap 4), and a box that is never closed is none.
"""

from __future__ import annotations

import re
from functools import cache


def last_box(text: str, commands: tuple[str, ...] = ("boxed",)) -> str | None:
    r"""What the last complete box holds, stripped; None if there is no box, or it is empty.

    ``commands``: which count, without the backslash. Also read: ``\boxed 5`` without braces, which holds the rest of
    the formula it stands in, or outside one the next word. Source: RISE spec §2, MATH extraction (D).
    """
    for match in reversed(list(_pattern(commands).finditer(text))):
        content = box_at(text, match)
        if content is not None:
            return text[content[0] : content[1]].strip() or None
    return None


def last_box_span(text: str, commands: tuple[str, ...]) -> tuple[int, int, int, int] | None:
    """(start, content start, content end, end) of the box that ``last_box`` reads, or None."""
    for match in reversed(list(_pattern(commands).finditer(text))):
        content = box_at(text, match)
        if content is not None:
            closed = content[1] < len(text) and text[content[0] - 1] == "{" and text[content[1]] == "}"
            return match.start(), content[0], content[1], content[1] + 1 if closed else content[1]
    return None


def box_at(text: str, command: re.Match[str]) -> tuple[int, int] | None:
    """Span of the content of the box whose command was matched; None if it is not closed."""
    start = command.end()
    while start < len(text) and text[start].isspace():
        start += 1
    if start < len(text) and text[start] == "{":
        end = closing_brace(text, start)
        return None if end is None else (start + 1, end)
    return _bare(text, command.start(), start)


def closing_brace(text: str, opening: int) -> int | None:
    r"""Index of the brace that closes the one at ``opening``; ``\{`` and ``\}`` are characters, not braces."""
    depth = 0
    index = opening
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
        index += 1
    return None


_UNESCAPED_DOLLAR = re.compile(r"(?<!\\)\$")
_FORMULA_END = re.compile(r"(?<!\\)\$|\\[)\]]|\n|\Z")
_WORD_END = re.compile(r"(?<!\\)\$|\\[)\]]|\s|\Z")


def _bare(text: str, command: int, start: int) -> tuple[int, int] | None:
    in_formula = len(_UNESCAPED_DOLLAR.findall(text, 0, command)) % 2 == 1
    end_match = (_FORMULA_END if in_formula else _WORD_END).search(text, start)
    assert end_match is not None  # \Z always matches
    end = end_match.start()
    while end > start and text[end - 1] in " \t.,;:":
        end -= 1
    return (start, end) if end > start else None


@cache
def _pattern(commands: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\\(?:" + "|".join(commands) + r")(?![A-Za-z])")
