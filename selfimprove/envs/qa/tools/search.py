"""What a tool is: one text in, one text or None out (docs/spin.md, S18).

::

    search("Mara Venn")   ->  "Mara Venn was a painter from Tolma. She was born in 1712."
    search("Zzyx")        ->  None: nothing was found

A tool of your own is a function like that, named in params.yaml as ``module:function``.
"""

import re
from collections.abc import Callable

Tool = Callable[[str], str | None]

CUT = 400
"""Characters of a paragraph that an answer has, near enough."""

_ENDS = re.compile(r"[.!?][\"')\]]*(?=\s)")


def cut_near(text: str, length: int = CUT) -> str:
    """At most ``length`` characters: whole sentences if the first fits into it and half of it is filled, else words.

    A word that fills half of it is cut.
    """
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    ends = [match.end() for match in _ENDS.finditer(text) if match.end() <= length]
    if ends and ends[-1] >= length // 2:
        return text[: ends[-1]]
    room = text[: length - 4]
    words = room.rsplit(" ", 1)[0]
    return f"{(words if len(words) >= length // 2 else room).rstrip(',;: ')} ..."
