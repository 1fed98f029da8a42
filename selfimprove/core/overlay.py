"""Nested mappings: a profile over the default params, a row's settings over those of all rows, and walks."""

from collections.abc import Iterator, Mapping, Sequence
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
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from mappings(value, (*path, str(key)))


def texts(value: Any) -> Iterator[str]:
    """Yield every text at or below ``value``, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def spell_out(section: Mapping[str, Any], takers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A copy of a method's section in which every training lists all of its settings.

    Args:
        takers: path of a training's settings (``*``: every entry; a final ``?``: may be absent) -> the keys of the
            section that provide its defaults; later keys override earlier ones.
    """
    full = deepcopy(dict(section))
    for place, keys in takers.items():
        *parts, last = place.removesuffix("?").split(".")
        for node in _nodes(full, parts):
            own = node.get(last, {} if place.endswith("?") else None)
            if isinstance(own, Mapping):
                node[last] = {}
                for settings in [*(full.get(key) for key in keys), own]:
                    if isinstance(settings, Mapping):
                        merge(node[last], settings)
    return full


def _nodes(node: Any, parts: Sequence[str]) -> list[dict[str, Any]]:
    """All mappings at a path."""
    if not isinstance(node, dict):
        return []
    if not parts:
        return [node]
    inner = list(node.values()) if parts[0] == "*" else [node.get(parts[0])]
    return [found for one in inner for found in _nodes(one, parts[1:])]


def _replaces(value: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    # Two engines, or two launchers, of different kinds share no keys worth keeping.
    return any(kind in value and value[kind] != old.get(kind) for kind in ("engine", "kind"))
