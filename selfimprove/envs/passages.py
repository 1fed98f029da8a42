"""Pieces of text about a world, for pretraining: statements, and questions whose answers follow from what was read.

A page of the crafting world, three passages long::

    craft 2 ash pole using 1 ash branch
    craft 1 ash stool using 1 ash plank, 2 ash pole
    How is ash pole made?                                   answer: craft 2 ash pole using 1 ash branch

Each world writes its own pages (``pages.py`` in its folder) from a generator of random numbers that the caller seeds.
They hold facts, maps, recipes and single worked steps, in the world's words; no page shows a task being solved from
its start to its end, and none the form in which a method plays an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

Ability = Literal["reading", "arithmetic", "copying", "lookup"]


class Passage(NamedTuple):
    """A statement, or with ``answer`` a question. ``ability``: what its answer takes."""

    text: str
    answer: str = ""
    ability: Ability = "reading"


Page = Callable[[Random], list[Passage]]
"""Writes one page: passages that belong together, in their order."""
