"""Settings of the embedded word problems (``arithmetic``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from selfimprove.core.params import Section
from selfimprove.core.sums import float_sum

# Not strict: YAML has no tuples, and tools that override a key may write it as text.
Range = Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], Field(strict=False)]
Distribution = Annotated[
    dict[Annotated[int, Field(ge=1, strict=False)], Annotated[float, Field(ge=0)]], Field(min_length=1)
]


class Difficulty(Section):
    """How hard the problems are. Ranges are inclusive; distributions map a value to its relative weight."""

    steps: Distribution = Field(
        default={2: 1.0, 3: 1.0, 4: 1.0}, description="number of operations in the solution, 2 to 6"
    )
    per_line: Distribution = Field(
        default={1: 1.0}, description="operations per line of the solution (more than one: mental arithmetic)"
    )
    term: Range = Field(default=(2, 60), description="range of the numbers that are added or subtracted")
    factor: Range = Field(default=(2, 9), description="range of the number of groups, and of multipliers and divisors")
    multiplicand: Range = Field(default=(2, 20), description="range of the size of each group")
    largest: int = Field(default=9999, ge=10, description="largest value allowed in a solution")

    @model_validator(mode="after")
    def _sound(self) -> Difficulty:
        for name in ("term", "factor", "multiplicand"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the first number of the range must not exceed the second; fix it")
        if not all(2 <= steps <= 6 for steps in self.steps):
            raise ValueError("steps: the number of operations must be from 2 to 6")
        for name in ("steps", "per_line"):
            if float_sum(getattr(self, name).values()) <= 0:
                raise ValueError(f"{name}: at least one weight must be above 0")
        return self
