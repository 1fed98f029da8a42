"""The schema of each section of params.yaml, and params with the settings of every training written out."""

from collections.abc import Iterator, Mapping
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.tracking import TrackingParams
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.trained import Trained
from selfimprove.models.base import BaseSection
from selfimprove.models.tokenizer import TokenizerSection
from selfimprove.pipeline.params import RunParams, section_faults

METHOD_SCHEMAS: dict[str, type[Trained]] = {
    "rise": RiseParams,
    "agent_r": AgentRParams,
    "reflect_rl": ReflectRLParams,
    "spin": SpinParams,
}
SCHEMAS: dict[str, type[Section]] = {
    "run": RunParams,
    "tracking": TrackingParams,
    "tokenizer": TokenizerSection,
    "base": BaseSection,
    **METHOD_SCHEMAS,
}


def schema_faults(values: Mapping[str, Any], where: str) -> Iterator[str]:
    """One sentence per invalid key of params; ``where``: their file."""
    values = {"tracking": {}, **values}
    for name, schema in SCHEMAS.items():
        yield from section_faults(values, name, schema, where)


def check_schemas(values: Mapping[str, Any], where: str) -> None:
    """Raises: UserError: one sentence per invalid key of params; ``where``: their file."""
    if faults := dict.fromkeys(schema_faults(values, where)):
        raise UserError("\n".join(faults))


def spelled_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """All of params.yaml with each training's settings written out and the sections of shared settings emptied."""
    full = dict(values)
    for method, schema in METHOD_SCHEMAS.items():
        section = values[method]
        shared: dict[str, Any] = {key: {} for keys in schema.takers(section).values() for key in keys if key in section}
        full[method] = schema.spelled_out(section) | shared
    return full
