"""Checks of the names of rows and iterations and of what they refer to, shared by all methods."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def check_names(kinds: Mapping[str, Iterable[str]], taken: Iterable[str]) -> None:
    """Refuse a name that is reserved, used twice, no plain folder name, or one that commands take for an option.

    Args:
        kinds: part of a section (``rows``, ``agents``) -> the names of its entries; taken: reserved names.

    Raises:
        ValueError: names the part and the entry.
    """
    known = set(taken)
    for kind, keys in kinds.items():
        for key in keys:
            if key in known:
                raise ValueError(f"{kind}.{key}: the name is taken; choose another")
            if not _NAME.fullmatch(key):
                raise ValueError(
                    f"{kind}.{key}: a name may contain only letters, digits, _ and -, and not begin with -; choose "
                    "another"
                )
            known.add(key)


def check_known(place: str, kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a reference to a name that does not exist.

    Args:
        place: the param with the reference; kind: what it refers to.

    Raises:
        ValueError: lists the existing names.
    """
    if name not in known:
        remedy = f"choose one of {', '.join(known)}" if known else "add it"
        raise ValueError(f"{place}: there is no {kind} {name!r}; {remedy}")


def check_room(place: str, count: int, offset: int, train: int) -> None:
    """Refuse a range of tasks that exceeds the training split.

    Raises:
        ValueError: names the params to correct.
    """
    if offset + count > train:
        raise ValueError(
            f"{place}: offset {offset} + tasks {count} exceeds tasks.train, which is {train}; change tasks, offset or "
            "tasks.train"
        )


def check_split(split: str, tasks: object) -> None:
    """Refuse an evaluation on an empty split.

    Args:
        split: the value of ``evaluate.split``; tasks: the section with the size of each split.

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
    """The iteration and its ancestors, oldest first, without the root they descend from; empty for a root.

    An iteration's ``init`` names its parent. ``kind`` is the section that contains them, for messages.

    Raises:
        ValueError: an ``init`` does not exist, or the iterations form a cycle.
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
