r"""Decides whether two MATH answers are equal: the normaliser of Hendrycks et al. (2021), then string equality.

``\dfrac{1}{2}``, ``\frac12``, ``1/2``, ``0.5`` and ``x = .5`` all become ``\frac{1}{2}``; ``10\%`` becomes ``10``, and
``5 \text{ cm}`` becomes ``5``. The steps and their order are in docs/rise.md, R10.
"""

import re


def normalise(text: str) -> str:
    r"""The normal form of a LaTeX answer.

    Raises:
        ValueError: no normal form (two right-hand units, a ``\sqrt`` or ``\frac`` with nothing after it).
    """
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac").replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = _without_units(text).replace("\\%", "").replace("\\%", "")  # twice, as in the original
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _brace_roots(text).replace(" ", "")
    text = _brace_fractions(text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return _slash_to_fraction(text)


def equivalent(a: str | None, b: str | None) -> bool:
    """Whether two answers have the same normal form; if one has none, they are compared verbatim.

    A missing answer equals nothing (in the original, two missing answers were equal).
    """
    if a is None or b is None:
        return False
    try:
        return normalise(a) == normalise(b)
    except ValueError:
        return a == b


def _without_units(text: str) -> str:
    # With the trailing space, \text{ starts a right-hand unit; \text{yes} is an answer.
    value, *units = text.split("\\text{ ")
    if len(units) > 1:
        raise ValueError("more than one unit")
    return value


def _brace_roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    if "" in rest:
        raise ValueError("a root of nothing")
    return first + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _brace_fractions(text: str) -> str:
    first, *rest = text.split("\\frac")
    pieces = [first]
    for part in rest:
        if not part:
            raise ValueError("a fraction of nothing")
        if part[0] == "{":
            pieces.append(part)
        elif len(part) < 2:
            return text  # only a numerator: return the entire answer unchanged
        elif part[1] == "{":
            pieces.append(f"{{{part[0]}}}{part[1:]}")
        else:
            pieces.append(f"{{{part[0]}}}{{{part[1]}}}{part[2:]}")
    return "\\frac".join(pieces)


def _slash_to_fraction(text: str) -> str:
    match = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return text if match is None else f"\\frac{{{match[1]}}}{{{match[2]}}}"
