"""Converts a kitchen game to a PDDL problem for ALFWorld's own domain (``alfred.pddl``), for all six kinds of goals.

For game 4 of seed 0, "cool some plate and put it in microwave", the beginning and the goal::

    (define (problem kitchen_4)
     (:domain alfred)
     (:objects agent1 - agent
      place_middle - location
      cabinet_bar_00 - receptacle
      ...
     (:goal (exists (?r - receptacle ?o - object) (and (inReceptacle ?o ?r) (objectType ?o PlateType)
      (receptacleType ?r MicrowaveType) (coolable ?o) (isCool ?o)))))

The original's games were generated from scenes of a house simulator, but a problem is only a list of facts and needs no
simulator. These problems state the facts of the built-in kitchen's game with the same number, so both can be played in
parallel. Like ALFWorld, we number things of one kind in descending order of their ids.
"""

from collections.abc import Iterator

from selfimprove.envs.alfworld.kitchen_games import KitchenGame
from selfimprove.envs.alfworld.kitchen_things import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    HOLDS,
    LAMP,
    LAMP_STANDS,
    OPENABLE,
    SINK,
    SLICEABLE,
    Goal,
)

_CAN_BE = {"heatable": HEATABLE, "coolable": COOLABLE, "cleanable": CLEANABLE, "sliceable": SLICEABLE}
_DONE = {"clean": "cleanable ?o) (isClean", "heat": "heatable ?o) (isHot", "cool": "coolable ?o) (isCool"}


def problem(game: KitchenGame) -> str:
    """The game's PDDL problem, in plain words that every parser accepts."""
    receptacles = [_id(name, game.receptacles) for name in game.receptacles]
    things = [_id(name, game.things) for name in game.things]
    objects = ["agent1 - agent", "place_middle - location"]
    objects += [f"place_{i:02} - location" for i in range(len(receptacles))]
    objects += [f"{name} - receptacle" for name in receptacles] + [f"{name} - object" for name in things]
    objects += [f"{kind} - rtype" for kind in sorted(set(map(_type, game.receptacle_kinds)) | _rtypes(game.goal))]
    objects += [f"{kind} - otype" for kind in sorted(set(map(_type, game.thing_kinds)) | {"KnifeType", _BUTTER})]
    lines = ["(= (total-cost) 0)", *(f"({fact})" for fact in _facts(game, receptacles, things))]
    return (
        f"(define (problem kitchen_{game.task})\n (:domain alfred)\n (:objects {_lines(objects)})\n"
        f" (:init {_lines(lines)})\n (:goal {goal_formula(game.goal)})\n (:metric minimize (total-cost)))\n"
    )


_BUTTER = "ButterknifeType"  # the domain's actions refer to these even if the kitchen has none
_NAMED = frozenset({"SinkbasinType", "MicrowaveType", "FridgeType"})


def _rtypes(goal: Goal) -> set[str]:
    return set(_NAMED) | (set() if goal.kind == "look_in_light" else {_type(goal.place)})


def _facts(game: KitchenGame, receptacles: list[str], things: list[str]) -> Iterator[str]:
    yield "atLocation agent1 place_middle"
    for i, (name, kind) in enumerate(zip(receptacles, game.receptacle_kinds, strict=True)):
        yield f"receptacleAtLocation {name} place_{i:02}"
        yield f"receptacleType {name} {_type(kind)}"
        if kind in OPENABLE:
            yield f"openable {name}"
    for name, kind, where in zip(things, game.thing_kinds, game.first, strict=True):
        yield f"objectType {name} {_type(kind)}"
        yield f"inReceptacle {name} {receptacles[where]}"
        yield f"objectAtLocation {name} place_{where:02}"
        yield f"{'toggleable' if kind == LAMP else 'pickupable'} {name}"
        for can_be, kinds in _CAN_BE.items():
            if kind in kinds:
                yield f"{can_be} {name}"
    for place in sorted(set(game.receptacle_kinds)):
        for kind in sorted(set(game.thing_kinds)):
            if kind in HOLDS[place] or (kind == LAMP and place in LAMP_STANDS):
                yield f"canContain {_type(place)} {_type(kind)}"


def goal_formula(goal: Goal) -> str:
    """The goal in the form of ALFRED's goals: a thing of the kind, with the treatment, in a receptacle of the kind."""
    kind, thing, place = goal
    if kind == "look_in_light":
        return (
            f"(exists (?a - agent ?l - location ?r - receptacle ?t - object ?o - object) (and (objectType ?t "
            f"{_type(place)}) (toggleable ?t) (isToggled ?t) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) "
            f"(inReceptacle ?t ?r) (objectType ?o {_type(thing)}) (holds ?a ?o)))"
        )
    there = f"(inReceptacle ?o ?r) (objectType ?o {_type(thing)}) (receptacleType ?r {_type(place)})"
    if kind == "pick_two":
        second = f"(inReceptacle ?p ?r) (objectType ?p {_type(thing)}) (not (= ?o ?p))"
        return f"(exists (?r - receptacle ?o - object ?p - object) (and {there} {second}))"
    done = f" ({_DONE[kind]} ?o)" if kind in _DONE else ""
    return f"(exists (?r - receptacle ?o - object) (and {there}{done}))"


def _type(kind: str) -> str:
    return f"{kind.capitalize()}Type"


def _id(name: str, names: tuple[str, ...]) -> str:
    """An id whose rank within its kind yields the number in ``name``; a sink is numbered by its basin."""
    kind, number = name.split()
    rank = sum(other.split()[0] == kind for other in names) - int(number)
    return f"sink_bar_{rank:02}_bar_sinkbasin" if kind == SINK else f"{kind}_bar_{rank:02}"


def _lines(items: list[str]) -> str:
    return "\n  ".join(items)
