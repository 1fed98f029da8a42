"""What every section of params.yaml shares: closed, strict schemas, and no number that no run could have."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

LARGEST_COUNT = 10**7
"""No count of a run is larger, unless its field has an upper bound of its own."""
LARGEST, SMALLEST = 1e9, 1e-12
"""Bounds of the size of every other number but 0: beyond them float32 overflows or loses the value."""
LARGEST_SEED = 2**32 - 1
"""NumPy's generators take no larger seed."""

CHOICE = "env:"
"""How the places of pydantic's errors name a choice of environment; no key of params.yaml begins so."""


def check_answer_room(asked: str, tokens: int, engine: str, cfg: object) -> None:
    """Refuse an answer that leaves no room for a prompt in an engine's context; endpoints and experts have none.

    Args:
        asked: the param that asks for an answer of so many tokens; engine: the name of the engine that gives it.

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
    """A section of params.yaml: unknown keys are refused, types are not guessed, values do not change."""

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
