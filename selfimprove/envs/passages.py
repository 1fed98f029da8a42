"""Pieces of text about a world, for pretraining: statements, and questions whose answers follow from what was read.

A page of the crafting world, three passages long::

    craft 2 ash pole using 1 ash branch
    craft 1 ash stool using 1 ash plank, 2 ash pole
    How is ash pole made?                                   answer: craft 2 ash pole using 1 ash branch

Each world writes its own pages (``pages.py`` in its folder) from a generator of random numbers that the caller seeds.
They hold facts, maps, recipes, single worked steps and, where a world can make any number of other tasks, whole solved
ones, searches and crafting with the expert's thoughts and actions. None is a task that a method is tested on, and none
shows what is a method's own: its prompt, feedback on an attempt, a revision, a judgement, a reflection.
"""

from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

Ability = Literal["reading", "arithmetic", "copying", "lookup", "solving"]


class Passage(NamedTuple):
    """A statement, or with ``answer`` a question. ``ability``: what its answer takes."""

    text: str
    answer: str = ""
    ability: Ability = "reading"


Page = Callable[[Random], list[Passage]]
"""Writes one page: passages that belong together, in their order."""
