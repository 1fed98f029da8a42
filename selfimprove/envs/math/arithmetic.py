"""Generates arithmetic word problems in GSM8K's format from a seed: RISE's default embedded task.

A problem (difficulty: three steps, one operation per line; annotations on)::

    question  Mia has 7 boxes with 12 marbles in each. Mia loses 15 of them. Tom has 3 times as many. How many marbles
              does Tom have?
    answer    7 * 12 = <<7*12=84>>84 marbles.
              84 - 15 = <<84-15=69>>69 marbles.
              69 * 3 = <<69*3=207>>207 marbles.
              #### 207

The scripted teacher is in ``arithmetic_expert``.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import get_args

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits, rng
from selfimprove.envs.math.arithmetic_words import NAMES, SCENES, Piece, Scene
from selfimprove.envs.math.params import Difficulty
from selfimprove.envs.splits import Split

SHARES: dict[str, int] = {"demonstrations": 45, "train": 35, "dev": 10, "test": 10}
"""Percent of all possible problems that belong to each split."""


@dataclass(frozen=True)
class WordProblem:
    """One problem in GSM8K's format. ``id`` and ``split`` depend only on the question's text."""

    question: str
    answer: str

    @property
    def id(self) -> str:
        """``arithmetic-`` and 16 hexadecimal digits of the question's hash."""
        return f"arithmetic-{key_bits('arithmetic', self.question):016x}"

    @property
    def split(self) -> Split:
        """The only split to which this question can belong."""
        return split_of(self.question)

    def row(self) -> dict[str, str]:
        """The row of a GSM8K file."""
        return {"question": self.question, "answer": self.answer}


def split_of(question: str) -> Split:
    """The split of a question: a function of its text, so that splits are disjoint for any counts and seeds."""
    place = key_bits("split", question) % 100
    for split in get_args(Split):
        place -= SHARES[split]
        if place < 0:
            return split
    raise AssertionError("SHARES must add up to 100")


def generate(
    count: int, *, seed: int, split: Split, difficulty: Difficulty, annotations: bool = True
) -> list[WordProblem]:
    """``count`` distinct problems of one split; a shorter list is a prefix of a longer one.

    ``annotations``: include GSM8K's calculator annotations (``<<7*12=84>>``) in the answers.

    Raises:
        UserError: the difficulty does not allow that many distinct problems.
    """
    draws = rng("arithmetic", seed, split)
    found: dict[str, WordProblem] = {}
    fruitless = 0
    while len(found) < count:
        problem = _draw(draws, difficulty, annotations)
        if problem is not None and problem.split == split and problem.question not in found:
            found[problem.question] = problem
            fruitless = 0
        elif (fruitless := fruitless + 1) == _PATIENCE:
            raise UserError(
                f"arithmetic: only {len(found)} of {count} requested {split} problems are distinct, with no more found "
                f"in {fruitless} draws; widen the difficulty's ranges or request fewer."
            )
    return list(found.values())


_PATIENCE = 20_000
"""The number of consecutive draws without a new problem after which a difficulty counts as exhausted."""


# --- one problem -----------------------------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


@dataclass(frozen=True)
class _Step:
    """One operation: each side is a number, or the index of an earlier step whose result it uses."""

    left: int
    left_is_step: bool
    op: str
    right: int
    right_is_step: bool
    value: int
    unit: str


def _draw(draws: Random, difficulty: Difficulty, annotations: bool) -> WordProblem | None:
    """One candidate, or None if the numbers drawn do not fit (a count below 1 or fractional, or too large a value)."""
    scene = draws.choice(SCENES)
    pieces = _plot(draws, scene, _pick(draws, difficulty.steps))
    if pieces is None:
        return None
    names = dict(zip("nf", draws.sample(NAMES, 2), strict=True), x=draws.choice(scene.things))
    steps: list[_Step] = []
    sentences = []
    value: tuple[int, bool] = (0, False)  # the running value: a number, or the index of the step that produced it
    for piece in pieces:
        told = _tell(draws, difficulty, piece, names, value, steps)
        if told is None:
            return None
        sentence, value = told
        sentences.append(sentence)
    lines = [_line(steps, first, last, annotations) for first, last in _lines(draws, steps, difficulty.per_line)]
    return WordProblem(" ".join(sentences), "\n".join([*lines, f"#### {steps[-1].value}"]))


def _pick(draws: Random, distribution: dict[int, float]) -> int:
    values = sorted(distribution)
    return draws.choices(values, [distribution[value] for value in values])[0]


def _plot(draws: Random, scene: Scene, steps: int) -> list[Piece] | None:
    """An opening, distinct moves and a closing with ``steps`` operations in total; None if they do not add up."""
    opening, closing = draws.choice(scene.openings), draws.choice(scene.closings)
    left = steps - opening.steps - closing.steps
    moves = []
    for move in draws.sample(scene.moves, len(scene.moves)):
        if move.steps <= left:
            moves.append(move)
            left -= move.steps
    return [opening, *moves, closing] if left == 0 else None


def _tell(
    draws: Random,
    difficulty: Difficulty,
    piece: Piece,
    names: dict[str, str],
    value: tuple[int, bool],
    steps: list[_Step],
) -> tuple[str, tuple[int, bool]] | None:
    """Draw a piece's numbers, append its operations to ``steps``; return its sentence and the new running value."""
    ranges = {"t": difficulty.term, "k": difficulty.factor, "m": difficulty.multiplicand}
    numbers = {
        name: draws.randint(*ranges[name[0]])
        for name in ("t1", "t2", "k1", "m1")
        if name in piece.text + piece.operations
    }
    if piece.operations == "v / k1":  # choose among the divisors instead of drawing until one fits
        whole = steps[value[0]].value if value[1] else value[0]
        divisors = [k for k in range(ranges["k"][0], ranges["k"][1] + 1) if whole % k == 0]
        if not divisors:
            return None
        numbers["k1"] = draws.choice(divisors)
    operands = {name: (number, False) for name, number in numbers.items()} | {"v": value}
    unit = piece.unit.format(**names)
    if piece.steps == 0:
        value = operands[piece.operations] if piece.operations else value
    else:
        for operation in piece.operations.split(" ; "):
            left, op, right = operation.split()
            a, b = (steps[i].value if is_step else i for i, is_step in (operands[left], operands[right]))
            result = _OPERATORS[op](a, b)
            if not 0 < result <= difficulty.largest:
                return None
            steps.append(_Step(*operands[left], op, *operands[right], result, unit))
            value = operands["s"] = (len(steps) - 1, True)
    return piece.text.format(**names, **numbers), value


def _lines(draws: Random, steps: list[_Step], per_line: dict[int, float]) -> Iterator[tuple[int, int]]:
    """Group the steps into lines (first, last); a result that a later line needs is always the last of its line."""
    first = 0
    while first < len(steps):
        last = min(first + _pick(draws, per_line), len(steps)) - 1
        while any(
            (step.left_is_step and first <= step.left < last) or (step.right_is_step and first <= step.right < last)
            for step in steps[last + 1 :]
        ):
            last -= 1
        yield first, last
        first = last + 1


def _line(steps: list[_Step], first: int, last: int, annotations: bool) -> str:
    expression, value = _expression(steps, first, last), steps[last].value
    note = f"<<{expression.replace(' ', '')}={value}>>" if annotations else ""
    return f"{expression} = {note}{value} {steps[last].unit}."


def _expression(steps: list[_Step], first: int, last: int) -> str:
    step = steps[last]
    sides = []
    for side, is_step in ((step.left, step.left_is_step), (step.right, step.right_is_step)):
        if not is_step:
            sides.append(str(side))
        elif side < first:
            sides.append(str(steps[side].value))
        else:
            inner = _expression(steps, first, side)
            # products bind tighter than sums, and sums and differences nest only on the left here
            loose = steps[side].op in "+-" and step.op in "*/"
            sides.append(f"({inner})" if loose else inner)
    return f"{sides[0]} {step.op} {sides[1]}"
