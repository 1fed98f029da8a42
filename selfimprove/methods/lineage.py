"""Names of rows and iterations, and what they go on from and ask for: alike in every method."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_names(kinds: Mapping[str, Iterable[str]], taken: Iterable[str]) -> None:
    """Refuse a name that is taken, by a folder or in another kind, or that is no plain folder name.

    Args:
        kinds: of each part of a section (``rows``, ``agents``) its entries' names; taken: those that none may have.

    Raises:
        ValueError: names the part and the entry.
    """
    known = set(taken)
    for kind, keys in kinds.items():
        for key in keys:
            if key in known:
                raise ValueError(f"{kind}.{key}: the name is taken; choose another")
            if not _NAME.fullmatch(key):
                raise ValueError(f"{kind}.{key}: a name may contain only letters, digits, _ and -; choose another")
            known.add(key)


def check_known(place: str, kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that does not exist.

    Args:
        place: the param that names it; kind: what it names.

    Raises:
        ValueError: lists the names that exist.
    """
    if name not in known:
        raise ValueError(f"{place}: there is no {kind} {name!r}; choose one of {', '.join(known)}")


def check_room(place: str, count: int, offset: int, train: int) -> None:
    """Refuse more tasks, counted from an offset, than there are.

    Raises:
        ValueError: names the params that can correct it.
    """
    if offset + count > train:
        raise ValueError(
            f"{place}: offset {offset} + tasks {count} exceeds tasks.train, which is {train}; change tasks, offset or "
            "tasks.train"
        )


def check_split(split: str, tasks: object) -> None:
    """Refuse an evaluation on a split that has no tasks.

    Args:
        split: the param ``evaluate.split``; tasks: the section with a count for each.

    Raises:
        ValueError: names both params.
    """
    if getattr(tasks, split) == 0:
        raise ValueError(
            f"evaluate.split: is {split}, but tasks.{split} is 0; raise tasks.{split}, or evaluate on another split"
        )


def lineage(
    iterations: Mapping[str, Any], name: str, roots: Collection[str] = ("base",), kind: str = "iterations"
) -> list[str]:
    """The iteration and its ancestors, oldest first; the root that they come from is left out. Of a root: nothing.

    An iteration's ``init`` names its parent. ``kind``: the section that holds them.

    Raises:
        ValueError: an ``init`` that does not exist, or a cycle.
    """
    chain: list[str] = []
    while name not in roots:
        if name not in iterations:
            child = chain[-1] if chain else "?"
            known = ", ".join([*roots, *iterations])
            raise ValueError(
                f"{kind}.{child}.init: there is no {kind.removesuffix('s')} {name!r}; choose one of {known}"
            )
        if name in chain:
            raise ValueError(f"{kind}.{name}.init: the {kind} form a cycle ({' <- '.join([*chain, name])})")
        chain.append(name)
        name = iterations[name].init
    return chain[::-1]
