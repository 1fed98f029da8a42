"""Merges the settings that a method's training runs share, written once in its section, into each training run."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, model_validator

from selfimprove.core.overlay import spell_out
from selfimprove.core.params import Section


class Trained(Section):
    """Parameters of a method. Each training run is validated with its complete settings, shared ones included."""

    @classmethod
    def takers(cls, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Path of a training run's settings -> the section's keys that it inherits from; see ``spell_out``."""
        raise NotImplementedError

    @classmethod
    def spelled_out(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """The section as in params.yaml, with the complete settings of every training run."""
        return spell_out(section, cls.takers(section))

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for key in {key for keys in cls.takers(values).values() for key in keys if key in values}:
            schema = cls.model_fields[key].annotation
            try:
                assert isinstance(schema, type)
                assert issubclass(schema, Section)
                schema.model_validate(values[key])
            except ValidationError:
                return values  # report the error for this key only, not once for every training run
        return cls.spelled_out(values)
