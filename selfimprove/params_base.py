"""What every section of params.yaml shares: closed, strict schemas."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of params.yaml: unknown keys are refused, types are not guessed, values do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
