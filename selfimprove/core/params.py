"""What every section of params.yaml shares: closed, strict schemas, and no number that no run could have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from selfimprove.core.errors import UserError

LARGEST_COUNT = 10**7
"""No count of a run is larger, unless its field has an upper bound of its own."""
LARGEST, SMALLEST = 1e9, 1e-12
"""Bounds of the size of every other number but 0: beyond them float32 overflows or loses the value."""
LARGEST_SEED = 2**32 - 1
"""NumPy's generators take no larger seed."""

CHOICE = "env:"
"""How the places of pydantic's errors name a choice of environment; no key of params.yaml begins so."""


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


def read_yaml(path: Path) -> dict[str, Any]:
    """The file as plain objects (YAML 1.2, as DVC reads it).

    Raises:
        UserError: missing, not YAML, or not a mapping.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; run from the repository's root, or `make use PROFILE=default`.")
    try:
        value = YAML(typ="safe", pure=True).load(path)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not YAML ({error.problem}); correct the line.") from None
    except (YAMLError, ValueError) as error:  # also of text that is not UTF-8, and of numbers with thousands of digits
        raise UserError(f"{path}: not YAML ({error}); fix the file.") from None
    except RecursionError:
        raise UserError(f"{path}: lists or mappings are nested too deep; fix the file.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a mapping was expected.")
    return value
