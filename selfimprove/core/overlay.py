"""Nested mappings: a profile over the default params, a row's settings over those of all rows, and walks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any


def merge(under: Any, over: Mapping[str, Any]) -> None:
    """Lay ``over`` over ``under``, in place.

    Mappings are merged key by key and everything else is replaced; a null removes an entry that is a mapping. A mapping
    of a different kind (another ``engine``, another launcher's ``kind``) replaces the old one as a whole.
    """
    for key, value in over.items():
        if value is None and key in under and isinstance(under[key], Mapping):
            del under[key]
        elif isinstance(value, Mapping) and isinstance(under.get(key), Mapping) and not _replaces(value, under[key]):
            merge(under[key], value)
        else:
            under[key] = deepcopy(value)


def mappings(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every mapping at or below ``node``, a mapping or a list, with its path."""
    if isinstance(node, dict):
        yield path, node
    for name, inner in entries(node):
        yield from mappings(inner, (*path, name))


def texts(value: Any, without: Collection[str] = ()) -> Iterator[str]:
    """Yield every text at or below ``value``, except keys and what is under the keys ``without``."""
    if isinstance(value, str):
        yield value
    for name, inner in entries(value):
        if name not in without:
            yield from texts(inner, without)


def places(node: Any, parts: Sequence[str], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, value) of every place whose path below ``node`` has these parts (``*``: any one part)."""
    if not parts:
        yield path, node
        return
    for name, inner in entries(node):
        if parts[0] in ("*", name):
            yield from places(inner, parts[1:], (*path, name))


def entries(node: Any) -> list[tuple[str, Any]]:
    """(name, value) of each entry of a mapping, or of a list, whose entries are named by their index; else none."""
    if isinstance(node, list):
        return [(str(index), value) for index, value in enumerate(node)]
    return [(str(key), value) for key, value in node.items()] if isinstance(node, dict) else []


def spell_out(section: Mapping[str, Any], takers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A copy of a method's section in which every training lists all of its settings.

    Args:
        takers: path of a training's settings (``*``: every entry; a final ``?``: may be absent) -> the keys of the
            section that provide its defaults; later keys override earlier ones.
    """
    full = deepcopy(dict(section))
    for place, keys in takers.items():
        *parts, last = place.removesuffix("?").split(".")
        for _, node in places(full, parts):
            own = node.get(last, {} if place.endswith("?") else None) if isinstance(node, dict) else None
            if isinstance(own, Mapping):
                node[last] = {}
                for settings in [*(full.get(key) for key in keys), own]:
                    if isinstance(settings, Mapping):
                        merge(node[last], settings)
    return full


def _replaces(value: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    # Two engines, or two launchers, of different kinds share no keys worth keeping.
    return any(kind in value and value[kind] != old.get(kind) for kind in ("engine", "kind"))
