"""Base of every section of params.yaml: closed, strict schemas that reject numbers no run could use."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

LARGEST_COUNT = 10**7
"""Upper bound for every integer whose field declares none of its own."""
LARGEST, SMALLEST = 1e9, 1e-12
"""Bounds on the magnitude of every non-zero float: beyond them float32 overflows or underflows."""
LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy's generators accept."""

CHOICE = "env:"
"""Prefix of an environment's tag in the locations of pydantic errors; no key of params.yaml starts with it."""


def _variable(name: str) -> str:
    """Raises: ValueError: it is not like a variable's name, and probably the key itself, which is not repeated."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise ValueError(
            "must be the name of an environment variable, in capital letters; export the key in it, and never write "
            "the key itself into a file"
        )
    return name


VariableName = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable that holds a key."""


def check_answer_room(asked: str, tokens: int, engine: str, cfg: object) -> None:
    """Refuse an answer length that leaves no room for a prompt in an engine's context (endpoints and experts: none).

    Args:
        asked: the param that sets the answer's length, ``tokens``; engine: the name of the engine that generates it.

    Raises:
        ValueError: names both params.
    """
    context = getattr(cfg, "context", None)
    if context is not None and tokens >= context:
        raise ValueError(
            f"{asked}: {tokens} tokens leave no room for a prompt in engines.{engine}.context {context}; lower the one "
            "or raise the other"
        )


class Section(BaseModel):
    """A section of params.yaml: unknown keys are refused, types are not coerced, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _possible_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        bounded = any(hasattr(rule, "le") or hasattr(rule, "lt") for rule in field.metadata)
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for number in entries:
            if type(number) is int and not bounded and abs(number) > LARGEST_COUNT:
                raise ValueError(f"a number of at most {LARGEST_COUNT} is expected")
            if type(number) is float and number and not SMALLEST <= abs(number) <= LARGEST:
                raise ValueError(f"a number from {SMALLEST:g} to {LARGEST:g} is expected, got {number:g}")
        return value
