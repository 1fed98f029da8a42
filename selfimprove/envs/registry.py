"""Finds environments by name: what ``world.py`` of each folder here declares, or ``package.module:Class``.

    agent_r.env: {name: textcraft, seed: 7}             ->  envs/textcraft/world.py, TextCraftParams
    agent_r.env: {name: "my_package.counter:Counter"}   ->  params.OwnTextParams

A new world is a folder with such a file; nothing else names it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, Union, get_args

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter, ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.params import CHOICE
from selfimprove.envs.params import (
    AnswerParams,
    EnvParams,
    ListedParams,
    OwnAnswerParams,
    OwnListedParams,
    OwnTextParams,
    TextParams,
)

P = TypeVar("P", bound=EnvParams)

FOLDER = Path(__file__).resolve().parents[0]


DEFAULTS = {"rise": "gsm8k", "agent_r": "textcraft", "reflect_rl": "taxi"}
"""The environment of a method whose params name none."""


@cache
def declared() -> tuple[type[EnvParams], ...]:
    """The sections that the worlds' folders declare."""
    found: list[type[EnvParams]] = []
    for file in sorted(FOLDER.glob("*/world.py")):
        module = importlib.import_module(f"selfimprove.envs.{file.parent.name}.world")
        found += [
            one
            for one in vars(module).values()
            if inspect.isclass(one) and issubclass(one, EnvParams) and one.__module__ == module.__name__
        ]
    return tuple(found)


def named(kind: type[P]) -> dict[str, type[P]]:
    """Name -> section, of the environments of one kind."""
    return {
        name: one
        for one in declared()
        if issubclass(one, kind)
        for name in get_args(one.model_fields["name"].annotation)
    }


def _names(one: type[EnvParams]) -> tuple[str, ...]:
    return get_args(one.model_fields["name"].annotation)


def folder_of(name: str) -> Path | None:
    """The folder, relative to the repository, that declares an environment; None: no folder here does."""
    for one in declared():
        if name in _names(one):
            return Path(*one.__module__.split(".")[:-1])
    return None


def section(kind: type[P], own: type[P], default: str) -> Any:
    """The type of an ``env`` section: the section of the environment that its ``name`` names."""
    known = named(kind)
    tags = {one: f"{CHOICE}{_names(one)[0]}" for one in known.values()}

    def tag(value: Any) -> str | None:
        name = value.get("name", default) if isinstance(value, Mapping) else getattr(value, "name", None)
        if not isinstance(name, str):
            return None
        return f"{CHOICE}own" if ":" in name else tags.get(known.get(name, kind))

    def its_own_options(value: Any) -> Any:
        """Leave out what another environment of the kind has by default; refuse what it would have otherwise."""
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("keys are expected, name first")
        name = value.get("name", default)
        mine = own if isinstance(name, str) and ":" in name else known.get(name) if isinstance(name, str) else None
        if mine is None:
            raise ValueError(
                f"name: {name!r} is unknown; choose {', '.join(known)}, or package.module:Class of your own"
            )
        kept = {"name": default, **value}
        for key in value:
            owner = next((one for one in known.values() if key in one.model_fields), None)
            if key in mine.model_fields or owner is None:
                continue
            if value[key] != owner.model_fields[key].get_default(call_default_factory=True):
                whose = _names(owner)[0]
                raise ValueError(f"{key} is an option of {whose}, and name is {name}; remove it")
            del kept[key]
        return kept

    tagged = [Annotated[one, Tag(place)] for one, place in {**tags, own: f"{CHOICE}own"}.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(tag), BeforeValidator(its_own_options)]  # noqa: UP007


if TYPE_CHECKING:
    TextSection: TypeAlias = TextParams
    ListedSection: TypeAlias = ListedParams
    AnswerSection: TypeAlias = AnswerParams
else:
    TextSection = section(TextParams, OwnTextParams, DEFAULTS["agent_r"])
    ListedSection = section(ListedParams, OwnListedParams, DEFAULTS["reflect_rl"])
    AnswerSection = section(AnswerParams, OwnAnswerParams, DEFAULTS["rise"])


def _reader(kind: type[P], choices: Any) -> Callable[..., P]:
    adapter: TypeAdapter[P] = TypeAdapter(choices)

    def read(**settings: Any) -> P:
        try:
            return adapter.validate_python(settings)
        except ValidationError as error:
            raise UserError(
                f"{settings.get('name', kind.__name__)}: {error.errors()[0]['msg'].removeprefix('Value error, ')}."
            ) from None

    return read


text_env = _reader(TextParams, TextSection)
listed_env = _reader(ListedParams, ListedSection)
answer_env = _reader(AnswerParams, AnswerSection)
