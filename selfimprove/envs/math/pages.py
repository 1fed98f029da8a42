"""Text about numbers for pretraining: sums, and sentences of a story with the steps that they require.

Examples of two kinds of pages; the third kind contains complete problems::

    Work out 484 - 15.                                      484 - 15 = 469

    Mia has 7 boxes with 12 marbles in each.                7 * 12 = 84 marbles.
    Mia loses 15 of them.                                   84 - 15 = 69 marbles.

Complete problems with solutions are from the split ``demonstrations``, so that no other split can contain them.
"""

from random import Random

from selfimprove.envs.math.arithmetic import generate
from selfimprove.envs.math.arithmetic_expert import solution
from selfimprove.envs.math.arithmetic_words import NAMES, SCENES, Piece
from selfimprove.envs.math.params import Difficulty
from selfimprove.envs.passages import Passage

LARGEST = 9999
_STEPS = {2: 2.0, 3: 3.0, 4: 2.0, 5: 1.0}
_DIFFICULTIES = (
    Difficulty(steps=_STEPS, term=(2, 30), factor=(2, 6), multiplicand=(2, 12)),
    Difficulty(steps=_STEPS, term=(2, 99), factor=(2, 9), multiplicand=(2, 49)),
    Difficulty(steps=_STEPS, term=(2, 199), factor=(2, 12), multiplicand=(2, 99)),
)
_SAY = ("Work out {}.", "What is {}?", "{} is how much?")


def sums(draws: Random) -> list[Passage]:
    """Four to ten sums of one operation each."""
    return [_sum(draws) for _ in range(draws.randint(4, 10))]


def story(draws: Random) -> list[Passage]:
    """Up to six sentences of one scene, each followed by the operations that it requires."""
    scene = draws.choice(SCENES)
    names = dict(zip("nf", draws.sample(NAMES, 2), strict=True), x=draws.choice(scene.things))
    passages: list[Passage] = []
    value = 0
    moves = draws.sample(scene.moves, draws.randint(1, min(4, len(scene.moves))))
    for piece in [draws.choice(scene.openings), *moves, draws.choice(scene.closings)]:
        told = _tell(draws, piece, names, value)
        if told is not None:
            passage, value = told
            passages.append(passage)
    return passages


def problems(draws: Random) -> list[Passage]:
    """One to three problems of two to five steps, each with its solution."""
    difficulty = draws.choice(_DIFFICULTIES)
    made = generate(draws.randint(1, 3), seed=draws.getrandbits(62), split="demonstrations", difficulty=difficulty)
    return [Passage(problem.question, solution(problem), "solving") for problem in made]


def _sum(draws: Random) -> Passage:
    a, op, b, result = _operation(draws)
    return Passage(draws.choice(_SAY).format(f"{a} {op} {b}"), f"{a} {op} {b} = {result}", "arithmetic")


def _operation(draws: Random) -> tuple[int, str, int, int]:
    op = draws.choice("++--*/")
    digits = draws.choice((10, 100, 100, 1000))
    if op in "+-":
        a, b = draws.randint(1, digits), draws.randint(1, draws.choice((10, 100, digits)))
        return (a, op, b, a + b) if op == "+" else (max(a, b), op, min(a, b), abs(a - b))
    k, m = draws.randint(2, 12), draws.randint(2, draws.choice((12, 60, digits - 1)))
    return (k, op, m, k * m) if op == "*" else (k * m, op, k, m)


def _tell(draws: Random, piece: Piece, names: dict[str, str], value: int) -> tuple[Passage, int] | None:
    """A sentence with its steps, and the value after it; None if the numbers do not fit."""
    high = draws.choice((30, 60, 200))
    numbers = {"t1": draws.randint(2, high), "t2": draws.randint(2, high), "k1": draws.randint(2, 9)}
    numbers["m1"] = draws.randint(2, draws.choice((12, 20, 60)))
    if "v / k1" in piece.operations:
        divisors = [k for k in range(2, 10) if value % k == 0]
        if not divisors or not value:
            return None
        numbers["k1"] = draws.choice(divisors)
    operands = {**numbers, "v": value}
    sentence = piece.text.format(**names, **numbers)
    if piece.steps == 0:
        value = operands.get(piece.operations, value)
        return Passage(sentence, f"{value} {piece.unit.format(**names)}."), value
    lines = []
    for operation in piece.operations.split(" ; "):
        left, op, right = operation.split()
        a, b = operands[left], operands[right]
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[op]
        if not 0 < result <= LARGEST:
            return None
        lines.append(f"{a} {op} {b} = {result} {piece.unit.format(**names)}.")
        value = operands["s"] = result
    return Passage(sentence, "\n".join(lines), "arithmetic"), value
