"""The kitchen's rules, those of ALFWorld 0.4: the commands that a scene admits, their effects, and their observations.

A scene is immutable, so trees and copies may share it. Sources: ALFWorld's ``alfred.pddl`` (preconditions) and
``alfred.twl2`` (wording); played in parallel, the two give the same observations. As in ALFWorld, only the thing in the
hand can be examined: its rule for other things never applies, because of a superfluous comma. Three differences are
intended: "look" in the middle of the room always shows the room (in ALFWorld only in the first observation, later
"nothing"); things behind a closed door cannot be sliced, so that the commands do not reveal them; ``help`` has its own
wording.
"""

from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.envs.alfworld.kitchen_games import KitchenGame
from selfimprove.envs.alfworld.kitchen_things import APPLIANCES, DONE_TO, KNIVES, LAMP, SLICEABLE

MIDDLE = -1  # middle of the room, where the player starts
IN_HAND = -1  # location of the thing that the player carries; at most one

HELP = {
    "look": "look around where you are",
    "inventory": "see what you carry",
    "go to (receptacle)": "walk to a receptacle",
    "open (receptacle)": "open a receptacle",
    "close (receptacle)": "close a receptacle",
    "take (object) from (receptacle)": "take an object out of or off a receptacle",
    "move (object) to (receptacle)": "put an object into or onto a receptacle",
    "examine (something)": "look at a receptacle or an object closely",
    "use (object)": "switch an object on",
    "heat (object) with (receptacle)": "make an object hot",
    "clean (object) with (receptacle)": "wash an object",
    "cool (object) with (receptacle)": "make an object cold",
    "slice (object) with (object)": "cut an object with a knife",
}


class Scene(NamedTuple):
    """Where the player is, where each thing is, which receptacles are open, and what was done to which things."""

    at: int
    where: tuple[int, ...]
    opened: frozenset[int] = frozenset()
    clean: frozenset[int] = frozenset()
    hot: frozenset[int] = frozenset()
    cool: frozenset[int] = frozenset()
    sliced: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()

    @property
    def held(self) -> int | None:
        """The thing in the player's hand."""
        return self.where.index(IN_HAND) if IN_HAND in self.where else None


class Deed(NamedTuple):
    """A parsed command: the verb, and the indices of its thing, its receptacle and (slice) its knife."""

    verb: str
    thing: int = -1
    receptacle: int = -1
    knife: int = -1


def first_scene(game: KitchenGame) -> Scene:
    """In the middle of the room, all doors closed, nothing done."""
    return Scene(MIDDLE, game.first)


def is_reachable(game: KitchenGame, scene: Scene, receptacle: int) -> bool:
    """Whether the receptacle is open or has no door."""
    return receptacle in scene.opened or not game.can_open(receptacle)


def command(game: KitchenGame, deed: Deed) -> str:
    thing = game.things[deed.thing] if deed.thing >= 0 else ""
    receptacle = game.receptacles[deed.receptacle] if deed.receptacle >= 0 else ""
    match deed.verb:
        case "go":
            return f"go to {receptacle}"
        case "take":
            return f"take {thing} from {receptacle}"
        case "move":
            return f"move {thing} to {receptacle}"
        case "clean" | "heat" | "cool":
            return f"{deed.verb} {thing} with {receptacle}"
        case "slice":
            return f"slice {thing} with {game.things[deed.knife]}"
        case "look" | "inventory" | "help":
            return deed.verb
    return f"{deed.verb} {thing or receptacle}"  # open, close, examine, use


def deeds(game: KitchenGame, scene: Scene) -> list[Deed]:
    """Every deed that is possible in a scene."""
    at, held = scene.at, scene.held
    possible = [Deed("look"), Deed("inventory"), Deed("help")]
    possible += [Deed("go", receptacle=i) for i in range(len(game.receptacles)) if i != at]
    if held is not None:
        possible.append(Deed("examine", held))
    if at == MIDDLE:
        return possible
    possible.append(Deed("examine", receptacle=at))
    if game.can_open(at):
        possible.append(Deed("close" if at in scene.opened else "open", receptacle=at))
    if is_reachable(game, scene, at):
        for thing in _inside(scene, at):
            possible += _handling(game, thing, at, held)
        if held is not None and game.fits(held, at):
            possible.append(Deed("move", held, at))
    if held is not None:
        for verb, appliance in APPLIANCES.items():
            if game.receptacle_kinds[at] == appliance and game.thing_kinds[held] in DONE_TO[verb]:
                possible.append(Deed(verb, held, at))
    return possible


def _handling(game: KitchenGame, thing: int, at: int, held: int | None) -> list[Deed]:
    """The possible deeds with a thing within reach."""
    kind = game.thing_kinds[thing]
    if kind == LAMP:
        return [Deed("use", thing)]
    if held is None:
        return [Deed("take", thing, at)]
    if kind in SLICEABLE and game.thing_kinds[held] in KNIVES:
        return [Deed("slice", thing, knife=held)]
    return []


def do(game: KitchenGame, scene: Scene, deed: Deed) -> tuple[Scene, str]:
    """The scene after a possible deed, and the observation."""
    scene = _after(game, scene, deed)
    thing = game.things[deed.thing] if deed.thing >= 0 else ""
    receptacle = game.receptacles[deed.receptacle] if deed.receptacle >= 0 else ""
    match deed.verb:
        case "go":
            return scene, f"You arrive at {receptacle}. {_contents(game, scene, deed.receptacle)}"
        case "open":
            return scene, f"You open the {receptacle}. {_contents(game, scene, deed.receptacle)}"
        case "close":
            return scene, f"You close the {receptacle}."
        case "take":
            return scene, f"You pick up the {thing} from the {receptacle}."
        case "move":
            return scene, f"You move the {thing} to the {receptacle}."
        case "clean" | "heat" | "cool":
            return scene, f"You {deed.verb} the {thing} using the {receptacle}."
        case "slice":
            return scene, f"You sliced the {thing} with the {game.things[deed.knife]}."
        case "use":
            return scene, f"You turn on the {thing}."  # like the original, every time
        case "examine" if deed.thing >= 0:
            return scene, _description(game, scene, deed.thing)
        case "examine":
            return scene, _contents(game, scene, deed.receptacle)
        case "inventory":
            if scene.held is None:
                return scene, "You are not carrying anything."
            return scene, f"You are carrying: a {game.things[scene.held]}."
        case "help":
            lines = "\n".join(f"  {pattern + ':':34}{meaning}" for pattern, meaning in HELP.items())
            return scene, f"\nAvailable commands:\n{lines}\n"
    return scene, look(game, scene)


def _after(game: KitchenGame, scene: Scene, deed: Deed) -> Scene:
    """The scene after a deed."""
    only = frozenset({deed.thing})
    match deed.verb:
        case "go":
            return scene._replace(at=deed.receptacle)
        case "open":
            return scene._replace(opened=scene.opened | {deed.receptacle})
        case "close":
            return scene._replace(opened=scene.opened - {deed.receptacle})
        case "take" | "move":
            goes_to = IN_HAND if deed.verb == "take" else deed.receptacle
            return scene._replace(where=(*scene.where[: deed.thing], goes_to, *scene.where[deed.thing + 1 :]))
        case "clean":
            return scene._replace(clean=scene.clean | only)
        case "heat":
            return scene._replace(hot=scene.hot | only, cool=scene.cool - only)
        case "cool":
            return scene._replace(cool=scene.cool | only, hot=scene.hot - only)
        case "slice":
            return scene._replace(sliced=scene.sliced | only)
        case "use":
            return scene._replace(used=scene.used | only)
    return scene


def look(game: KitchenGame, scene: Scene) -> str:
    """The room if the player is in its middle, else the receptacle that the player faces."""
    if scene.at == MIDDLE:
        room = _listing(game.receptacles)
        return f"You are in the middle of a room. Looking quickly around you, you see {room}."
    return f"You are facing the {game.receptacles[scene.at]}. Next to it, you see nothing."


def _inside(scene: Scene, receptacle: int) -> list[int]:
    return [thing for thing, where in enumerate(scene.where) if where == receptacle]


def _contents(game: KitchenGame, scene: Scene, receptacle: int) -> str:
    name = game.receptacles[receptacle]
    seen = _listing([game.things[thing] for thing in _inside(scene, receptacle)])
    if not game.can_open(receptacle):
        return f"On the {name}, you see {seen}."
    return f"The {name} is open. In it, you see {seen}." if receptacle in scene.opened else f"The {name} is closed."


def _listing(names: Sequence[str]) -> str:
    """``a cup 2, a cup 1, and a apple 1``: the article is always a, and the last comma is kept."""
    named = [f"a {name}" for name in names]
    return ", and ".join(filter(None, [", ".join(named[:-1]), named[-1]])) if named else "nothing"


def _description(game: KitchenGame, scene: Scene, thing: int) -> str:
    """The result of examining a thing: everything that was done to it, in the original's wording."""
    name = game.things[thing]
    clean, sliced = thing in scene.clean, thing in scene.sliced
    warmth = "hot" if thing in scene.hot else "cool" if thing in scene.cool else ""
    if not (clean or sliced or warmth):
        return f"There's nothing special about {name}."
    if warmth == "cool" and not (clean or sliced):
        return f"This is a cold {name}."
    state = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
    return f"This is a {' '.join(word for word in (state, 'sliced' if sliced else '') if word)} {name}."


def is_won(game: KitchenGame, scene: Scene) -> bool:
    """Whether the goal is reached: enough treated things in one place, or one in hand next to a lamp that is on."""
    kind, wanted, place = game.goal
    if kind == "look_in_light":
        held = scene.held
        lit = any(game.thing_kinds[lamp] == place and scene.where[lamp] == scene.at for lamp in scene.used)
        return lit and held is not None and game.thing_kinds[held] == wanted
    arrived = [
        scene.where[thing]
        for thing, thing_kind in enumerate(game.thing_kinds)
        if thing_kind == wanted and is_treated(game, scene, thing)
    ]
    needed = 2 if kind == "pick_two" else 1
    return any(
        arrived.count(receptacle) >= needed
        for receptacle, receptacle_kind in enumerate(game.receptacle_kinds)
        if receptacle_kind == place
    )


def is_treated(game: KitchenGame, scene: Scene, thing: int) -> bool:
    """Whether the goal's treatment (clean, heat or cool, if any) has been applied to a thing."""
    kind = game.goal.kind
    if kind == "clean":
        return thing in scene.clean
    if kind == "heat":
        return thing in scene.hot
    return kind != "cool" or thing in scene.cool
