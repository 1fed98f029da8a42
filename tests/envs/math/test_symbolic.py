"""What of an answer reaches sympy's parser, which uses ``eval``."""

from __future__ import annotations

import re
from pathlib import Path

import math_verify.parser
import pytest
import sympy.parsing.sympy_parser
import sympy.physics.units  # creates its symbols with the same parser

from selfimprove.envs.math.symbolic import SymbolicChecker, _compare
from tests.support.macos import without_address_space_limits

HOSTILE = [
    '__import__("os").system("touch hacked")', r'\text{__import__("os")} + 2', r"\operatorname{exit}(3)", "x.__class__",
    r"f(exit, __import__)", '1+4$ 2+3 $ "".join', "answer: 10/2 exit()", r"\max(exit, quit)", r"1e5 + \mathrm{exit}",
    "(lambda: 2+3)()", "2+3 if exit() else 1", r"\frac{exit()}{2}", "[exit() for x in (1, 2)]",
]  # fmt: skip


def test_only_numbers_and_arithmetic_of_an_answer_reach_the_parser_of_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = sympy.parsing.sympy_parser.parse_expr

    def spy(text: str, *more: object, **options: object) -> object:
        parsed.append(text)
        return parse(text, *more, **options)

    for module in (sympy.parsing.sympy_parser, math_verify.parser):
        monkeypatch.setattr(module, "parse_expr", spy)
    for answer in HOSTILE:
        try:
            _compare("5", answer)
        except Exception:  # the worker takes any exception for "not equal"
            continue
    assert "2+3" in " ".join(parsed)
    assert not [text for text in parsed if not re.fullmatch(r"[\d\s.+*/()eE-]*", text)]


def test_answers_are_compared_also_where_address_space_cannot_be_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_address_space_limits(tmp_path, monkeypatch)
    checker = SymbolicChecker(timeout=5)
    try:
        assert checker.equivalent(r"\frac{1}{2}", "0.5")
    finally:
        checker.close()
