"""Generates docs/params.md from the schemas: every key of params.yaml with its type, default and meaning."""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from selfimprove.envs.registry import INNER
from selfimprove.pipeline.check import SCHEMAS
from selfimprove.pipeline.meanings import MEANINGS

PAGE = Path("docs/params.md")


def page() -> str:
    lines = ["# Every key of params.yaml", "", "Written by `make docs` from the schemas; a test keeps it true."]
    for place, schema in schemas():
        text = " ".join((schema.__doc__ or "").split())
        lines += ["", f"## `{place}`", "", text, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for key, field in keys_of(schema):
            lines.append(f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {meaning(schema, key)} |")
    return "\n".join(lines) + "\n"


def schemas() -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section once, with the place of its first occurrence."""
    seen: set[type[BaseModel]] = set()
    waiting: list[tuple[str, type[BaseModel]]] = list(SCHEMAS.items())
    while waiting:
        place, schema = waiting.pop(0)
        if schema in seen:
            continue
        seen.add(schema)
        yield place, schema
        for key, field in keys_of(schema):
            star = ".*" if get_origin(field.annotation) is dict else ""
            waiting += [(f"{place}.{key}{star}", inner) for inner in _models(field.annotation)]


def keys_of(schema: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """A section's keys as in the file, where an adapter's inner environment has its keys beside the adapter's."""
    return [(key, field) for key, field in schema.model_fields.items() if key != INNER]


def meaning(schema: type[BaseModel], key: str) -> str:
    """The field's description, or its entry in ``MEANINGS`` if it has none."""
    described = schema.model_fields[key].description
    found = (MEANINGS[name] for name in names_of(schema, key) if name in MEANINGS)
    return described or next(found, "")


def names_of(schema: type[BaseModel], key: str) -> tuple[str, ...]:
    """Names under which ``MEANINGS`` may list a key, in order of precedence."""
    classes = [f"{one.__name__}.{key}" for one in schema.__mro__ if issubclass(one, BaseModel)]
    return *classes, f"{schema.__module__.split('.')[-2]}.{key}", key


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default is PydanticUndefined:
        return "required" if field.is_required() else "—"
    if isinstance(field.default, BaseModel):
        return "its defaults"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return "null" if value is None else f"`{value}`".replace("True", "true").replace("False", "false")


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return "section" if issubclass(annotation, BaseModel) else annotation.__name__
    names = str(annotation)
    models = list(_models(annotation))
    if models:
        return "section" if get_origin(annotation) is not dict else "sections by name"
    if "Literal" in names:
        options = [str(option) for option in _options(annotation)]
        return " \\| ".join(options)
    return _named(annotation).replace("|", "\\|")


def _named(annotation: Any) -> str:
    """A type in the terms of params.yaml, without its bounds."""
    arguments = [_named(argument) for argument in get_args(annotation)]
    origin = get_origin(annotation)
    if origin is Annotated:
        return arguments[0]
    if origin in (Union, UnionType):
        return " | ".join(arguments)
    if annotation in (None, type(None)):
        return "null"
    name = str(getattr(origin or annotation, "__name__", annotation))
    return f"{name}[{', '.join(arguments)}]" if arguments else name


def _options(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        if get_args(argument):
            yield from _options(argument)
        elif argument is type(None):
            yield "null"
        else:
            yield argument.__name__ if isinstance(argument, type) else argument


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _models(argument)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
