"""Short texts about a world, for pretraining: statements, and questions that the preceding text answers.

A page of the crafting world, three passages long::

    craft 2 ash pole using 1 ash branch
    craft 1 ash stool using 1 ash plank, 2 ash pole
    How is ash pole made?                                   answer: craft 2 ash pole using 1 ash branch

Each world writes its own pages (``pages.py`` in its folder) with a random number generator that the caller seeds. They
contain facts, maps, recipes, single worked steps and, if a world can generate any number of other tasks, complete
solutions with the expert's thoughts and actions. No page contains a task that a method is tested on, or anything
specific to a method: its prompt, feedback on an attempt, a revision, a judgement, a reflection.
"""

from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

Ability = Literal["reading", "arithmetic", "copying", "lookup", "solving"]


class Passage(NamedTuple):
    """A statement, or a question if ``answer`` is set. ``ability``: what answering it requires."""

    text: str
    answer: str = ""
    ability: Ability = "reading"


Page = Callable[[Random], list[Passage]]
"""Writes one page: related passages, in order."""
