"""Dotted keys of params that match a pattern such as ``*.engines.*.dtype``."""

from collections.abc import Iterator
from typing import Any


def matches(params: dict[str, Any], pattern: str, method: str, *, create: bool) -> Iterator[str]:
    """Yield keys of ``method`` that match a pattern; with ``create``, the last part may be absent from its mapping."""
    *parts, last = pattern.split(".")
    if parts[0] not in ("*", method):
        return
    places: list[tuple[tuple[str, ...], Any]] = [((method,), params[method])]
    for part in parts[1:]:
        places = [
            ((*path, name), value)
            for path, node in places
            for name, value in _children(node)
            if part in ("*", name) and isinstance(value, dict | list)
        ]
    for path, node in places:
        names = [name for name, _ in _children(node) if last in ("*", name)]
        for name in names or ([last] if create and isinstance(node, dict) else []):
            yield ".".join((*path, name))


def _children(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, list):
        return [(str(index), value) for index, value in enumerate(node)]
    return [(str(key), value) for key, value in node.items()]
