"""The kitchen's planner: a shortest path to the goal from any scene, with full knowledge of the scene.

An errand specifies which things are brought to which place, in which order, and where to put down anything else that
is in the hand. Every errand is tried: a walk turns it into deeds, and the shortest list of deeds is the plan.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

from selfimprove.core.seeds import rng
from selfimprove.envs.alfworld.kitchen_games import KitchenGame
from selfimprove.envs.alfworld.kitchen_rules import IN_HAND, Deed, Scene, is_reachable, is_treated, is_won
from selfimprove.envs.alfworld.kitchen_things import APPLIANCES, LAMP


class Errand(NamedTuple):
    """``emptied``: the receptacle for whatever is in the hand, or None; ``things`` are brought to ``place``."""

    emptied: int | None
    things: tuple[int, ...]
    place: int


def plan(game: KitchenGame, scene: Scene) -> list[Deed]:
    """A shortest list of deeds to the goal, the first one found; [] if it is reached."""
    if is_won(game, scene):
        return []
    return min((_walk(game, scene, errand) for errand in _errands(game, scene)), key=len)


def _errands(game: KitchenGame, scene: Scene) -> Iterator[Errand]:
    wanted = [thing for thing, kind in enumerate(game.thing_kinds) if kind == game.goal.thing]
    for place in _places(game, scene):
        missing, number = wanted, 1
        if game.goal.kind != "look_in_light":
            missing = [i for i in wanted if scene.where[i] != place or not is_treated(game, scene, i)]
            number = (2 if game.goal.kind == "pick_two" else 1) - (len(wanted) - len(missing))
        for things in permutations(missing, number):
            held = scene.held
            if held is None or held == things[0]:
                yield Errand(None, things, place)
            else:
                for receptacle in range(len(game.receptacles)):
                    if game.fits(held, receptacle):
                        yield Errand(receptacle, things, place)


def _places(game: KitchenGame, scene: Scene) -> list[int]:
    """The receptacles where the goal can be reached: those of the goal's kind, or those with a lamp."""
    if game.goal.kind == "look_in_light":
        return [scene.where[thing] for thing, kind in enumerate(game.thing_kinds) if kind == LAMP]
    return [i for i, kind in enumerate(game.receptacle_kinds) if kind == game.goal.place]


def _walk(game: KitchenGame, scene: Scene, errand: Errand) -> list[Deed]:
    way: list[Deed] = []
    at, opened, where = scene.at, set(scene.opened), list(scene.where)

    def go(receptacle: int, *, reach: bool = False) -> None:
        nonlocal at
        if receptacle != at:
            way.append(Deed("go", receptacle=receptacle))
            at = receptacle
        if reach and receptacle not in opened and not is_reachable(game, scene, receptacle):
            way.append(Deed("open", receptacle=receptacle))
            opened.add(receptacle)

    if errand.emptied is not None and scene.held is not None:
        go(errand.emptied, reach=True)
        way.append(Deed("move", scene.held, at))
        where[scene.held] = at  # it may be one of the things
    for thing in errand.things:
        if where[thing] != IN_HAND:
            go(where[thing], reach=True)
            way.append(Deed("take", thing, at))
        verb = game.goal.kind
        if verb in APPLIANCES and not is_treated(game, scene, thing):
            go(game.receptacle_kinds.index(APPLIANCES[verb]))
            way.append(Deed(verb, thing, at))
        if verb == "look_in_light":
            go(errand.place)
            lamp = next(i for i, kind in enumerate(game.thing_kinds) if kind == LAMP and scene.where[i] == at)
            way += [] if lamp in scene.used else [Deed("use", lamp)]
        else:
            go(errand.place, reach=True)
            way.append(Deed("move", thing, at))
    return way


_THOUGHTS = {
    "search": (
        "A {kind} may be at the {place}, so I go there.",
        "I need a {kind} and look for it at the {place}.",
        "Next I look at the {place} for a {kind}.",
    ),
    "carry": (
        "I have the {kind}, so I take it to the {place}.",
        "The {kind} has to come to the {place}, so I go there.",
        "With the {kind} in hand I walk to the {place}.",
    ),
    "empty": (
        "My hand is not free, so I go to the {place} to put the {kind} down.",
        "I can't carry two things, so the {kind} goes to the {place}.",
    ),
    "lay": ("I need a free hand, so I lay the {kind} down.", "The {kind} is of no use here, so I put it away."),
    "light": ("I need the light at the {place}, so I go there.", "A lamp may stand at the {place}, so I go there."),
    "open": ("The {place} is closed, so I open it.", "I have to open the {place} first.", "I open the {place}."),
    "take": ("Here is a {kind}, so I take it.", "This {kind} is what I need.", "I take the {kind}."),
    "move": (
        "The {kind} has to be here, so I put it down.",
        "The {kind} belongs here now.",
        "I leave the {kind} here.",
    ),
    "clean": ("The {kind} must be clean, so I wash it.", "I wash the {kind} in the {place}."),
    "heat": ("The {kind} must be hot, so I heat it.", "I heat the {kind} in the {place}."),
    "cool": ("The {kind} must be cool, so I cool it.", "I cool the {kind} in the {place}."),
    "use": ("It is to be seen in the light, so I turn the {kind} on.", "I switch on the {kind}."),
}


def thoughts(game: KitchenGame, way: list[Deed]) -> list[str]:
    """A sentence for each command of a plan: what the player hopes to find, never what only the plan knows."""
    said = []
    for i, deed in enumerate(way):
        aim = next((later for later in way[i:] if later.verb not in ("go", "open")), None)
        purpose = deed.verb
        idle = aim is not None and aim.verb == "move" and game.thing_kinds[aim.thing] != game.goal.thing
        if deed.verb == "go":
            if aim is None or aim.verb == "use":
                purpose = "light"
            else:
                purpose = "search" if aim.verb == "take" else "empty" if idle else "carry"
        elif deed.verb == "move" and idle:
            purpose = "lay"
        kind = game.goal.thing if aim is None else game.thing_kinds[aim.thing]
        place = "" if deed.receptacle < 0 else game.receptacles[deed.receptacle]
        chance = rng("kitchen thought", game.task, *deed, len(way) - i)
        said.append(chance.choice(_THOUGHTS[purpose]).format(kind=kind, place=place))
    return said
