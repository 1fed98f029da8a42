"""The interface of tools: a function from a string to a string or None (docs/spin.md, S18).

::

    search("Mara Venn")   ->  "Mara Venn was a painter from Tolma. She was born in 1712."
    search("Zzyx")        ->  None: nothing was found

A user-defined tool is such a function, specified in params.yaml as ``module:function``.
"""

import re
from collections.abc import Callable

Tool = Callable[[str], str | None]

CUT = 400
"""The approximate maximum length of a result in characters."""

_ENDS = re.compile(r"[.!?][\"')\]]*(?=\s)")


def cut_near(text: str, length: int = CUT) -> str:
    """At most ``length`` characters: whole sentences if these fill at least half of it, else whole words.

    A word is cut only if whole words would fill less than half.
    """
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    ends = [match.end() for match in _ENDS.finditer(text) if match.end() <= length]
    if ends and ends[-1] >= length // 2:
        return text[: ends[-1]]
    if length <= 4:  # no room for a letter before the dots
        return text[: max(0, length)]
    room = text[: length - 4]
    words = room.rsplit(" ", 1)[0]
    return f"{(words if len(words) >= length // 2 else room).rstrip(',;: ')} ..."
