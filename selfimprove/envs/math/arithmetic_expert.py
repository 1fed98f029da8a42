"""The scripted expert for arithmetic problems, which replaces a stronger teacher model, including its errors.

It writes attempts with the box that RISE's prompt requires::

    7 * 12 = 84 marbles.
    84 - 15 = 69 marbles.
    69 * 3 = 207 marbles.
    The answer is \\boxed{207}.

An erroneous attempt contains one slip, which is carried through (``84 - 15 = 79``, ``79 * 3 = 237``, ``\\boxed{237}``).
"""

import ast
import re
from random import Random

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.math.arithmetic import WordProblem

_LINE = re.compile(r"(?P<expression>[-+*/() 0-9]+) = (?:<<[^<>]*>>)?(?P<value>\d+) (?P<unit>[^=]+)")
_NUMBER = re.compile(r"\d+")


def solution(problem: WordProblem) -> str:
    """The expert's attempt without errors: the gold steps, and the answer in a box.

    Raises:
        UserError: the answer is not in the generator's format.
    """
    lines, gold = _read(problem)
    return _attempt(lines, gold)


def expert(problem: WordProblem, *, error_rate: float, key: object) -> str:
    """The scripted teacher's attempt: right, or with probability ``error_rate`` with one slip carried through.

    ``key`` identifies the attempt (a ``SeedKey``): the same key gives the same text. A wrong attempt never ends with
    the gold number.

    Raises:
        UserError: ``error_rate`` is outside [0, 1], or the answer is not in the generator's format.
    """
    if not 0 <= error_rate <= 1:
        raise UserError(f"the expert's error_rate is {error_rate}; set it between 0 and 1.")
    draws = rng("expert", key)
    lines, gold = _read(problem)
    if draws.random() >= error_rate:
        return _attempt(lines, gold)
    places = draws.sample(range(len(lines)), len(lines))
    for place in [*places, *places]:
        slipped = _slip(draws, lines, place)
        if slipped is not None and slipped[-1][1] != gold:
            return _attempt(slipped, slipped[-1][1])
    # every slip broke a division or cancelled out: put the slip in the last line, on which nothing depends
    last = _slip(draws, lines, len(lines) - 1) or lines
    return _attempt(last, last[-1][1])


def _read(problem: WordProblem) -> tuple[list[tuple[str, int, str]], int]:
    """Parse the solution: its lines as (expression, value, unit), and the gold number."""
    *steps, last = problem.answer.split("\n")
    found = [_LINE.fullmatch(line) for line in steps]
    if not found or None in found or not re.fullmatch(r"#### \d+", last):
        raise UserError(
            f"problem {problem.id}: its answer is not in the form of the arithmetic generator, and the scripted expert "
            "can only solve generated problems; choose another teacher."
        )
    lines = [(line["expression"], int(line["value"]), line["unit"]) for line in found if line is not None]
    return lines, int(last.removeprefix("#### "))


def _attempt(lines: list[tuple[str, int, str]], result: int) -> str:
    text = "".join(f"{expression} = {value} {unit}\n" for expression, value, unit in lines)
    return f"{text}The answer is \\boxed{{{result}}}."


def _slip(draws: Random, lines: list[tuple[str, int, str]], place: int) -> list[tuple[str, int, str]] | None:
    """Make line ``place`` wrong and recompute the lines that use its result; None if a later line then has no value."""
    changed: dict[str, str] = {}
    slipped = []
    for index, (expression, value, unit) in enumerate(lines):
        carried = _NUMBER.sub(lambda number: changed.get(number[0], number[0]), expression)
        result = _misread(draws, value) if index == place else value if carried == expression else _evaluate(carried)
        if result is None:
            return None
        if result != value:
            changed[str(value)] = str(result)
        slipped.append((carried, result, unit))
    return slipped


def _misread(draws: Random, value: int) -> int:
    """A plausible wrong result: a lost or extra carry, a miscount by one or two, two digits swapped."""
    digits = str(value)
    wrong = [value + delta for delta in (-10, -2, -1, 1, 2, 10)]
    if value >= 100:
        wrong += [value - 100, value + 100]
    wrong += [int(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]) for i in range(len(digits) - 1)]
    return draws.choice([number for number in wrong if number > 0 and number != value])


def _evaluate(expression: str) -> int | None:
    """The value of an expression of ``+ - * /`` and parentheses if it is a positive integer, else None."""
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except ArithmeticError:  # a division with a remainder, or by 0
        return None
    return value if value > 0 else None


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            quotient, rest = divmod(_value(left), _value(right))
            if rest:
                raise ArithmeticError("not a whole number")
            return quotient
    raise TypeError(f"{ast.dump(node)} is not arithmetic")
