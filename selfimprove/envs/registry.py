"""Finds environments by name: those that a folder's ``world.py`` declares, and any ``package.module:Class``.

    agent_r.env: {name: textcraft, seed: 7}             ->  envs/textcraft/world.py, TextCraftParams
    agent_r.env: {name: "my_package.counter:Counter"}   ->  params.OwnTextParams

To add a world, add a folder with such a file; nothing else refers to it. Each method plays environments of one kind
(``KINDS``). ``adapters/`` convert other kinds, and an environment that no adapter can convert is refused with a message
that names the missing capability.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, Union, get_args

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter, ValidationError

from selfimprove.core.errors import UserError, meant, sentence
from selfimprove.core.params import CHOICE
from selfimprove.envs.own_classes import nearness, own_class
from selfimprove.envs.params import (
    AnswerParams,
    EnvParams,
    ListedParams,
    OwnAnswerParams,
    OwnListedParams,
    OwnParams,
    OwnTextParams,
    TextParams,
)

P = TypeVar("P", bound=EnvParams)

FOLDER = Path(__file__).resolve().parents[0]
ACTED_TURNS = 100
"""The default ``max_turns`` of a listed environment that is adapted; the methods that play it have their own limits."""

INNER = "inner"
"""The field of an adapter's section that holds the adapted environment's section."""

MIXTURE = "mixture"
"""The name of a list of environments."""

DEFAULTS = {"rise": "gsm8k", "agent_r": "textcraft", "reflect_rl": "taxi", "spin": "questions"}
"""The default environment of each method."""

KINDS: dict[str, type[EnvParams]] = {
    "rise": AnswerParams, "agent_r": TextParams, "reflect_rl": ListedParams, "spin": TextParams
}  # fmt: skip
"""The kind of environment that each method plays. Adapters convert other kinds."""


@cache
def declared() -> tuple[type[EnvParams], ...]:
    """The sections declared in the worlds' folders."""
    return _sections(sorted(FOLDER.glob("*/world.py")))


@cache
def adapters() -> tuple[type[EnvParams], ...]:
    """The sections of ``adapters/``: each converts environments of one kind into another."""
    return _sections(sorted((FOLDER / "adapters").glob("[!_]*.py")))


def _sections(files: Iterable[Path]) -> tuple[type[EnvParams], ...]:
    found: list[type[EnvParams]] = []
    for file in files:
        module = importlib.import_module(f"selfimprove.envs.{file.parent.name}.{file.stem}")
        found += [
            one
            for one in vars(module).values()
            if inspect.isclass(one) and issubclass(one, EnvParams) and one.__module__ == module.__name__
        ]
    return tuple(found)


def named(kind: type[P]) -> dict[str, type[P]]:
    """Name -> section of the environments of one kind; the name is ``prefix:…`` if a prefix selects the section."""
    return {name: one for one in declared() if issubclass(one, kind) for name in _names(one)}


def _names(one: type[EnvParams]) -> tuple[str, ...]:
    return (f"{one.prefix}:…",) if one.prefix else get_args(one.model_fields["name"].annotation)


@cache
def _own() -> tuple[type[OwnParams], ...]:
    """The sections of user-defined environments."""
    more = [one for one in declared() if issubclass(one, OwnParams)]
    return (OwnTextParams, OwnListedParams, OwnAnswerParams, *more)


def section_of(name: str, kind: type[EnvParams]) -> type[EnvParams] | None:
    """The section of an environment of any kind, by name or ``package.module:Class``; None if there is none.

    A class belongs to the first kind whose protocol it implements, starting with ``kind``; if it implements none, to
    that of which it has the most members, which is the one whose missing members are reported.
    """
    if ":" not in name:
        return named(EnvParams).get(name)
    before = name.partition(":")[0]
    if prefixed := next((one for one in declared() if one.prefix == before), None):
        return prefixed
    sections = sorted(_own(), key=lambda one: not issubclass(one, kind))
    for one in sections:
        with suppress(ValueError):
            own_class(name, one.needs)
            return one
    return max(sections, key=lambda one: nearness(name, one.needs))


def adapter(kind: type[EnvParams], one: type[EnvParams]) -> type[EnvParams] | None:
    """The adapter from ``one`` to ``kind``; None if there is none, or if ``one`` lacks a required capability."""
    return next((each for each in _adapters(kind, one) if not each.lacks(one)), None)


def lacks(kind: type[EnvParams], one: type[EnvParams]) -> str:
    """The capability that an environment lacks to be used as one of ``kind``; "" if it can be."""
    if issubclass(one, kind) or adapter(kind, one):
        return ""
    return next((each.lacks(one) for each in _adapters(kind, one)), kind.capability)


def _adapters(kind: type[EnvParams], one: type[EnvParams]) -> list[type[EnvParams]]:
    """The adapters from ``one`` to ``kind``, those for the most specific class first."""
    fitting = [each for each in adapters() if issubclass(each, kind) and issubclass(one, each.adapts)]
    return sorted(fitting, key=lambda each: -max(len(of.__mro__) for of in each.adapts if issubclass(one, of)))


def playable(kind: type[EnvParams]) -> list[str]:
    """The names of the environments of a kind, then of those that adapters convert; prefixes last in each group."""
    known = named(EnvParams)
    found = (name for name, one in known.items() if name != MIXTURE and not lacks(kind, one))
    return sorted(found, key=lambda name: (name not in named(kind), ":" in name))


def modules_of(method: str, name: str, *, mixed: bool = False) -> list[str]:
    """The modules through which a method plays the environment called ``name``; [] if no environment has this name.

    ``mixed``: it is part of a mixture, which plays text environments with every method.
    """
    kind = TextParams if mixed else KINDS.get(method, EnvParams)
    one = section_of(name, kind) if re.fullmatch(r"[\w.]+(:[\w./:-]+)?", name) else None
    if one is None:
        return []
    by = None if issubclass(one, kind) else adapter(kind, one)
    own = name.removeprefix(f"{one.prefix}:").split(":")[:-1] if one.names_module else []
    return [*own, one.__module__, *([by.__module__] if by else [])]


def section(kind: type[P], default: str) -> Any:
    """The type of an ``env`` section: that of the environment selected by ``name``, with an adapter if necessary.

    For an environment of another kind, the section is the adapter's, and its ``inner`` is the environment's section; in
    params.yaml the keys of both are on the same level.
    """
    known, owns = named(EnvParams), _own()
    natives = dict.fromkeys(one for one in known.values() if issubclass(one, kind))
    tags: dict[type[EnvParams], str] = {one: f"{CHOICE}{_names(one)[0]}" for one in natives}
    tags |= {one: f"{CHOICE}{one.__name__}" for one in (*owns, *adapters()) if issubclass(one, kind)}

    def chosen(value: Mapping[str, Any]) -> tuple[type[EnvParams], type[EnvParams] | None]:
        """The environment's section, and the adapter's if one is needed."""
        name = value.get("name", default)
        one = section_of(name, kind) if isinstance(name, str) else None
        offered = f"choose {', '.join(playable(kind))}, or a custom package.module:Class"
        if one is None:
            raise ValueError(f"name: {name!r} is unknown; {meant(name, playable(kind), offered)}")
        if lacking := lacks(kind, one):
            raise ValueError(f"name: {name} has no {lacking}, which this method needs; {offered}")
        return one, None if issubclass(one, kind) else adapter(kind, one)

    def tag(value: Any) -> str | None:
        one, by = chosen(value) if isinstance(value, Mapping) else (type(value), None)
        return tags.get(by or one)

    def its_own_options(value: Any) -> Any:
        """Drop other environments' options that have their default values; refuse those that have other values."""
        if isinstance(value, kind):
            return value
        if isinstance(value, list):
            value = {"name": MIXTURE, "parts": value}
        if isinstance(value, Mapping) and value.get("name") == MIXTURE and isinstance(value.get("parts"), list):
            value = {**value, "parts": parts_of(value["parts"])}
        if not isinstance(value, Mapping):
            raise ValueError("expected a section with the key name")
        one, by = chosen(value)
        fields = {*one.model_fields, *(by.model_fields if by else ())}
        kept = {"name": default, **value}
        for key in value:
            owners = [other for other in dict.fromkeys(known.values()) if key in other.model_fields]
            if key in fields or not owners:
                continue
            if all(value[key] != other.model_fields[key].get_default(call_default_factory=True) for other in owners):
                whose = _names(owners[0])[0]
                raise ValueError(f"{key} is an option of {whose}, but name is {kept['name']}; remove it")
            del kept[key]
        return kept if by is None else nested(one, by, kept)

    tagged = [Annotated[one, Tag(place)] for one, place in tags.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(tag), BeforeValidator(its_own_options)]  # noqa: UP007


def parts_of(sections: Sequence[Any]) -> list[Any]:
    """The parts of a mixture from the list in params.yaml: ``env`` sections with ``share`` (default: equal shares).

    Raises:
        ValueError: an entry is not the section of a text environment.
    """
    parts: list[Any] = []
    for place, keys in enumerate(sections):
        if isinstance(keys, Mapping) and isinstance(keys.get("env"), Mapping):  # as sections are serialised
            keys = {**keys["env"], "share": keys.get("share")}
        if not isinstance(keys, Mapping) or "name" not in keys:
            raise ValueError(f"{place}: name is missing; every entry of the list must be an environment with its name")
        share, own = keys.get("share", 1 / len(sections)), {key: keys[key] for key in keys if key != "share"}
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(
                f"{place}.share: {share!r} is not a share of the tasks; set a number above 0 and at most 1"
            )
        try:
            parts.append({"share": share, "env": TypeAdapter(TextSection).validate_python(own)})
        except ValidationError as error:
            raise ValueError(f"{place}.{_fault(error)}") from None
    return parts


def nested(one: type[EnvParams], by: type[EnvParams], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an adapter, with its environment as ``inner``; keys that both define are passed to both.

    Raises:
        ValueError: a key of the environment does not fit.
    """
    outer = {key: value for key, value in keys.items() if key in by.model_fields and key != INNER}
    inner = {key: value for key, value in keys.items() if key in one.model_fields or key not in outer}
    if issubclass(one, ListedParams):
        inner.setdefault("max_turns", ACTED_TURNS)
    try:
        return {**outer, INNER: one.model_validate(inner)}
    except ValidationError as error:
        raise ValueError(_fault(error)) from None


def _fault(error: ValidationError) -> str:
    """The first validation error, prefixed with its key."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(CHOICE))
    said = {"extra_forbidden": "unknown key; remove it or fix its name", "missing": "missing; add it"}.get(
        fault["type"], fault["msg"].removeprefix("Value error, ")
    )
    return f"{place}: {said}" if place else said


if TYPE_CHECKING:
    TextSection: TypeAlias = TextParams
    ListedSection: TypeAlias = ListedParams
    AnswerSection: TypeAlias = AnswerParams
else:
    TextSection = section(TextParams, DEFAULTS["agent_r"])
    ListedSection = section(ListedParams, DEFAULTS["reflect_rl"])
    AnswerSection = section(AnswerParams, DEFAULTS["rise"])


def _reader(kind: type[P], choices: Any) -> Callable[..., P]:
    schema: TypeAdapter[P] = TypeAdapter(choices)

    def read(**settings: Any) -> P:
        try:
            return schema.validate_python(settings)
        except ValidationError as error:
            raise UserError(sentence(f"{settings.get('name', kind.__name__)}: {_fault(error)}")) from None

    return read


text_env = _reader(TextParams, TextSection)
listed_env = _reader(ListedParams, ListedSection)
answer_env = _reader(AnswerParams, AnswerSection)
