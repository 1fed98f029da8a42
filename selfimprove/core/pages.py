"""Markdown pages with a generated part between two marks."""

import textwrap
from collections.abc import Sequence

from selfimprove.core.errors import UserError

WIDTH = 120
"""Line width of prose."""


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with the part between the marks replaced by ``text``.

    Raises:
        UserError: the marks are missing.
    """
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise UserError(f"a page lacks the marks {begin.strip()} … {end.strip()}; restore them around its table.")
    return f"{before}{begin}{text}{end}{after}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


def prose(text: str) -> str:
    """A paragraph, wrapped at ``WIDTH``."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
