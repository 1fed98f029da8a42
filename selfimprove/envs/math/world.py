"""The ``env`` section of word problems (gsm8k) and competition mathematics (math)."""

from typing import Literal

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import AnswerEnv
from selfimprove.envs.params import AnswerParams


class MathParams(AnswerParams):
    """How attempts are graded: by a number (gsm8k) or a formula (math)."""

    name: Literal["gsm8k", "math"] = "gsm8k"
    extraction: Literal["robust", "strict"] = "robust"
    equiv: Literal["hendrycks", "extended"] = "hendrycks"
    grade_timeout: float = Field(default=5.0, gt=0, description="timeout of a symbolic comparison in seconds")

    def make(self) -> AnswerEnv:
        return make_env(self.name, self.extraction, self.equiv, self.grade_timeout)


def make_env(name: str, extraction: str = "robust", equiv: str = "hendrycks", grade_timeout: float = 5.0) -> AnswerEnv:
    """Create the environment that the ``env`` section describes.

    Raises:
        UserError: no such environment, or an option that it does not have.
    """
    from selfimprove.envs.math.competition import Math
    from selfimprove.envs.math.gsm8k import Gsm8k

    if name == "gsm8k":
        if equiv != "hendrycks":
            raise UserError("env.equiv: gsm8k compares numbers, and 'extended' works only with math; remove the line.")
        if extraction not in ("robust", "strict"):
            raise UserError(f"env.extraction: {extraction!r} is unknown; set robust or strict.")
        return Gsm8k(strict=extraction == "strict")
    if name == "math":
        if extraction != "robust":
            raise UserError("env.extraction: math supports only 'robust'; set that ('strict' is for gsm8k).")
        if equiv not in ("hendrycks", "extended"):
            raise UserError(f"env.equiv: {equiv!r} is unknown; set hendrycks or extended.")
        return Math(extended=equiv == "extended", timeout=grade_timeout)
    raise UserError(f"env.name: {name!r} is unknown; set gsm8k or math (lower case).")
