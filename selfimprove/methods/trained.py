"""Settings that a method's trainings share are written once in its section; each training has only what differs."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, model_validator

from selfimprove.core.overlay import spell_out
from selfimprove.core.params import Section


class Trained(Section):
    """A method's section. Its trainings are validated with all their settings, shared ones included."""

    @classmethod
    def takers(cls, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Place of a training's settings -> the keys of the section that it takes others from; see ``spell_out``."""
        raise NotImplementedError

    @classmethod
    def spelled_out(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """The section, as params.yaml has it, with all settings of every training."""
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
                return values  # said of this key alone, not of every training too
        return cls.spelled_out(values)
