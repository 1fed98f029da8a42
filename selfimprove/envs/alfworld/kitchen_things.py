"""The contents of a kitchen: kinds of receptacles and things, which fit together, possible treatments, and the goals.

Words and facts are taken from ALFRED (Shridhar et al. 2020), the basis of ALFWorld's games, as far as they belong in a
kitchen. The desk lamp, which ALFRED has in other rooms, is added so that all six kinds of goals are possible.
"""

from typing import Literal, NamedTuple

Kind = Literal["pick_and_place", "look_in_light", "clean", "heat", "cool", "pick_two"]
KINDS: tuple[Kind, ...] = ("pick_and_place", "look_in_light", "clean", "heat", "cool", "pick_two")

LAMP = "desklamp"
SINK, MICROWAVE, FRIDGE = "sinkbasin", "microwave", "fridge"
APPLIANCES: dict[str, str] = {"clean": SINK, "heat": MICROWAVE, "cool": FRIDGE}
OPENABLE = frozenset({"cabinet", "drawer", FRIDGE, MICROWAVE})

# Minimum and maximum number per kitchen.
RECEPTACLES = {
    "cabinet": (2, 4),
    "coffeemachine": (1, 1),
    "countertop": (1, 2),
    "diningtable": (0, 1),
    "drawer": (1, 3),
    FRIDGE: (1, 1),
    "garbagecan": (1, 1),
    MICROWAVE: (1, 1),
    "shelf": (0, 2),
    "sidetable": (0, 1),
    SINK: (1, 1),
    "stoveburner": (1, 2),
    "toaster": (0, 1),
}

_FRUIT = frozenset({"apple", "potato", "tomato"})
_FOOD = _FRUIT | {"bread", "egg", "lettuce"}
_DISHES = frozenset({"bowl", "cup", "mug", "plate"})
_POTS = frozenset({"kettle", "pan", "pot"})
_CUTLERY = frozenset({"butterknife", "fork", "knife", "ladle", "spatula", "spoon"})
_SHAKERS = frozenset({"peppershaker", "saltshaker"})
_BOTTLES = frozenset({"glassbottle", "soapbottle", "winebottle"})
_PAPER = frozenset({"book", "cellphone", "creditcard", "keychain"})
_SPONGE = frozenset({"dishsponge"})
THINGS = _FOOD | _DISHES | _POTS | _CUTLERY | _SHAKERS | _BOTTLES | _PAPER | _SPONGE

CLEANABLE = _FRUIT | {"egg", "lettuce"} | _DISHES | _POTS | _CUTLERY | _SPONGE
HEATABLE = _FRUIT | {"bread", "egg", "cup", "mug", "plate"}
COOLABLE = _FOOD | _DISHES | {"pan", "pot", "winebottle"}
SLICEABLE = _FRUIT | {"bread", "lettuce"}
KNIVES = frozenset({"butterknife", "knife"})
DONE_TO: dict[str, frozenset[str]] = {"clean": CLEANABLE, "heat": HEATABLE, "cool": COOLABLE}

HOLDS: dict[str, frozenset[str]] = {
    "cabinet": _DISHES | _POTS | _SHAKERS | _BOTTLES | _SPONGE | {"book", "ladle"},
    "coffeemachine": frozenset({"mug"}),
    "countertop": THINGS,
    "diningtable": THINGS,
    "drawer": _CUTLERY | _SHAKERS | _SPONGE | _PAPER,
    FRIDGE: _FOOD | _DISHES | {"pan", "pot", "glassbottle", "winebottle"},
    "garbagecan": _FOOD | _SPONGE | {"glassbottle", "soapbottle", "winebottle"},
    MICROWAVE: _FRUIT | _DISHES | {"bread", "egg", "glassbottle"},
    "shelf": _DISHES | _SHAKERS | _BOTTLES | _PAPER | {"kettle", "pot"},
    "sidetable": _FOOD | _DISHES | _CUTLERY | _SHAKERS | _BOTTLES | _PAPER | {"pan", "pot"},
    SINK: _FOOD | _DISHES | _CUTLERY | _SPONGE | {"kettle", "pan", "pot"},
    "stoveburner": _POTS,
    "toaster": frozenset(),
}
LAMP_STANDS = frozenset({"countertop", "diningtable", "shelf", "sidetable"})
SHOWN_IN_LIGHT = _PAPER | {"bowl", "cup", "mug", "plate", "saltshaker"}

# ALFWorld's two templates for each kind of goal.
SENTENCES: dict[Kind, tuple[str, str]] = {
    "pick_and_place": ("put a {thing} in {place}", "put some {thing} on {place}"),
    "look_in_light": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "clean": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "heat": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "cool": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "pick_two": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}


class Goal(NamedTuple):
    """The kind of thing that has to be brought to a kind of place; with a lamp, ``place`` is the lamp's kind."""

    kind: Kind
    thing: str
    place: str


def goals(kind: Kind) -> list[Goal]:
    """Every goal of a kind, sorted: a thing and a place that it fits into, other than the appliance that treats it."""
    if kind == "look_in_light":
        return [Goal(kind, thing, LAMP) for thing in sorted(SHOWN_IN_LIGHT)]
    things = DONE_TO.get(kind, THINGS)
    return [
        Goal(kind, thing, place)
        for place in sorted(HOLDS)
        if place != APPLIANCES.get(kind)
        for thing in sorted(HOLDS[place] & things)
    ]
