"""Whether a reflection on DangerousTaxi misreads the map: it names another target than the map, or another place of it.

A reflection model that misreads the map can be the reason for failed rides (docs/experiments.md), and reinforcement
learning does not train it. The page therefore marks such reflections. With this map ::

    | : | : :X|
    | : | : : |          X is the taxi with the passenger aboard; it hides the destination.
    | : : : : |
    | | : | : |
    | | : | : |

"The destination is four rows south." is wrong, and "This is the destination, and the passenger is aboard." is right.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from selfimprove.envs.taxi.grid import ABOARD, STATES, picture, place
from selfimprove.envs.taxi.words import where

_FAR = range(-4, 5)
_PLACES = {where(down, right): (down, right) for down in _FAR for right in _FAR}
_AWAY = re.compile(r"\b(?P<target>passenger|destination) is (?P<where>[a-z ]+)", re.IGNORECASE)
# A match begins where the run of letters does; tried at each of them, a long run would take quadratic time.
_LIES = re.compile(r"(?<![a-z ])(?P<where>[a-z ]+) lies the (?P<target>passenger|destination)\b", re.IGNORECASE)
_HERE = re.compile(r"\b(?:passenger waits right here|stands where the passenger waits)\b", re.IGNORECASE)
_ARRIVED = re.compile(r"\b(?:This is the destination|D is reached)\b", re.IGNORECASE)


class Target(NamedTuple):
    """What the taxi has to reach next, and how many rows south and columns east of the taxi it is."""

    name: str
    down: int
    right: int


def misreads(drawn: str, reflection: str) -> bool | None:
    """Whether a reflection names another target, or another place of it, than the map.

    Args:
        drawn: the current map, seven lines.

    Returns:
        None if the map is not the taxi's, or the reflection is not in the scripted teacher's words.
    """
    true, said = _targets().get(drawn), stated(reflection)
    return None if true is None or said is None else said != true


def stated(reflection: str) -> Target | None:
    """The target in a reflection; None if there is none. The inverse of ``EnumeratedTaxi.explain``."""
    if _HERE.search(reflection):
        return Target("passenger", 0, 0)
    if _ARRIVED.search(reflection):
        return Target("destination", 0, 0)
    found = _AWAY.search(reflection) or _LIES.search(reflection)
    offset = _PLACES.get(found["where"].strip().lower()) if found else None
    return Target(found["target"].lower(), *offset) if found and offset else None


@cache
def _targets() -> Mapping[str, Target]:
    """Map -> target, in all states. A target that the taxi hides is where the taxi is."""
    found = {}
    for state in range(STATES):
        here = place(state)
        name = "destination" if here.passenger == ABOARD else "passenger"
        found[picture(state)] = Target(name, here.target[0] - here.row, here.target[1] - here.column)
    return found
