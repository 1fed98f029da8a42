r"""MATH: competition problems with a LaTeX answer (Hendrycks et al. 2021, MIT licence).

An episode (the first row of the test file, two turns)::

    user       Great job! You've successfully answered the question. Now, let's move on to the next one.
               What is the value of $101^{3} - 3 \cdot 101^{2} + 3 \cdot 101 -1$?
    assistant  It is $(101-1)^2 = \boxed{10{,}000}$.
    user       The answer is incorrect. Please try again. Here's the question: What is the value of $101^{3} ...
    assistant  It is $(101-1)^3 = 100^3 = \boxed{1000000}$.
    gold       The given expression is the expansion of $(101-1)^3$. ... $100^3=\boxed{1000000}$.

Rewards: 1 right, 0 wrong or unreadable (docs/rise.md, R6, R9 and R10).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import Grade, Problem
from selfimprove.envs.math import hendrycks
from selfimprove.envs.math.boxes import last_box_span
from selfimprove.envs.math.problem_files import problems_of
from selfimprove.envs.math.symbolic import SymbolicChecker

_BOXES = ("boxed", "fbox")


def extract(attempt: str) -> str | None:
    r"""The verbatim content of the last ``\boxed{..}`` or ``\fbox{..}`` (braces balanced) or ``\boxed x``; or None."""
    span = last_box_span(attempt, _BOXES)
    content = "" if span is None else attempt[span[1] : span[2]]
    return content if content.strip() else None


def parse_gold(solution: str) -> str | None:
    """The gold answer: the last box of the reference solution, extracted as from an attempt."""
    return extract(solution)


def equivalent(a: str | None, b: str | None) -> bool:
    """``hendrycks.equivalent``."""
    return hendrycks.equivalent(a, b)


class Math:
    """The environment.

    ``extended`` also accepts answers that math-verify proves equal, in a process that is killed after ``timeout``
    seconds of CPU time; ``timeouts`` counts these cases (each is "not equivalent").
    """

    name = "math"

    def __init__(self, *, extended: bool = False, timeout: float = 5.0) -> None:
        self._symbolic = SymbolicChecker(timeout) if extended else None

    @property
    def timeouts(self) -> int:
        """The number of symbolic comparisons that timed out since this environment was created."""
        return 0 if self._symbolic is None else self._symbolic.timeouts

    def close(self) -> None:
        """Stop the symbolic checker's process, if there is one."""
        if self._symbolic is not None:
            self._symbolic.close()

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Problems from rows {problem, solution, id?, …}; without ``id``, the id is derived from the problem's text."""
        lacking = "no \\boxed answer in the solution"
        return problems_of(rows, where, self.name, ("problem", "solution"), parse_gold, lacking)

    def row(self, problem: Problem) -> Mapping[str, Any]:
        """See ``WritesRows``."""
        return {"id": problem.id, "problem": problem.question, "solution": problem.answer}

    def extract(self, attempt: str) -> str | None:
        """The content of the last box."""
        return extract(attempt)

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Equal after normalisation or, if ``extended``, by algebra (``a`` takes the gold answer's role)."""
        if a is None or b is None:
            return False
        return hendrycks.equivalent(a, b) or (self._symbolic is not None and self._symbolic.equivalent(a, b))

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """1 right, 0 otherwise."""
        answer = extract(attempt)
        return Grade(1.0 if self.equivalent(problem.gold, answer) else 0.0, answer)

    def demonstration(self, problem: Problem) -> str:
        """The reference solution; if it continues after the box, the boxed answer is repeated at its end."""
        return _ending_in_box(problem.answer, problem.gold.strip())

    def slip(self, problem: Problem, *key: object) -> str:
        """The reference solution with another answer in its last box."""
        wrong = _misread(problem.gold.strip(), *key)
        span = last_box_span(problem.answer, _BOXES)
        assert span is not None  # a problem has a gold answer
        return _ending_in_box(f"{problem.answer[: span[0]]}\\boxed{{{wrong}}}{problem.answer[span[3] :]}", wrong)


def _ending_in_box(solution: str, answer: str) -> str:
    span = last_box_span(solution, _BOXES)
    if span is not None and re.fullmatch(r"[\s.$]*(?:\\[\])][\s.$]*)?", solution[span[3] :]):
        return solution
    return f"{solution.rstrip()}\nThe answer is $\\boxed{{{answer}}}$."


def _misread(gold: str, *key: object) -> str:
    """An answer that is not equivalent to ``gold``: a number changed or, without numbers, the sign or a 2 added."""
    draws = rng("slip", gold, *key)
    numbers = list(re.finditer(r"[0-9]+", gold))
    candidates = [
        f"{gold[: number.start()]}{value}{gold[number.end() :]}"
        for number in numbers
        for value in {int(number[0][-9:]) + delta for delta in (-2, -1, 1, 2, 10)}
        if value >= 0
    ]
    candidates += [f"-{gold}" if not gold.startswith("-") else gold[1:], f"2{gold}"] if not candidates else []
    candidates = [wrong for wrong in sorted(candidates) if not equivalent(wrong, gold)]
    return draws.choice(candidates) if candidates else f"{gold}+1"
