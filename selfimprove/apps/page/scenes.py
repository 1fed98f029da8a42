"""Scenes that the page draws from observations: a taxi's grid, a kitchen, a crafter's inventory.

Scenes are parsed from the episode's text, so they work for every record, and no episode is replayed.
"""

import re
from typing import Any

_GRID = re.compile(r"\+-{9}\+\n(?:\|[^\n]{9}\|\n){5}\+-{9}\+")
_GET = re.compile(r"get (\d{1,15}) (.+)")
_CRAFT = re.compile(r"craft .+? using (.+)")
_COUNTED = re.compile(r"(\d{1,15}) (.+)")
_CRAFTED = re.compile(r"Crafted (\d{1,15}) (?:minecraft:)?(\S+)")
_ROOM = re.compile(r"you see (.+?)\.\s", re.DOTALL)
_ARRIVE = re.compile(r"You arrive at ([\w ]{1,60}?)\.")
_TAKE = re.compile(r"You pick up the ([\w ]{1,60}?) from the ([\w ]{1,60}?)\.")
_PUT = re.compile(r"You (?:move|put) the ([\w ]{1,60}?) (?:to|in/on|in|on) the ([\w ]{1,60}?)\.")
_SEEN = re.compile(r"(?:On|In) (?:the ([\w ]{1,60}?)|it), you see ([^.]{1,2000})\.")
_OPENED = re.compile(r"You open the ([\w ]{1,60}?)\.")
_CLOSED = re.compile(r"You close the ([\w ]{1,60}?)\.")
_TREATED = re.compile(r"You (clean|heat|cool|slice)d? the ([\w ]{1,60}?) (?:using|with) the ")
_LIT = re.compile(r"You turn on the ([\w ]{1,60}?)\.")
_KINDS = (_ARRIVE, _TAKE, _PUT, _SEEN, _OPENED, _CLOSED, _TREATED, _LIT)
_EVENT = re.compile("|".join(one.pattern for one in _KINDS))
_STATES = {"clean": "clean", "heat": "hot", "cool": "cold", "slice": "sliced"}
_OPENING = "Looking quickly around you"


def taxi(text: str) -> dict[str, Any] | None:
    """The last grid of a text, five lines of nine characters: ``{"taxi": ["P: | : : ", …]}``."""
    lines = last_grid(text).splitlines()[1:-1]
    return {"taxi": [line[1:-1] for line in lines]} if lines else None


def last_grid(text: str) -> str:
    """The last taxi map in a text, seven lines; "" if there is none."""
    return next(reversed(_GRID.findall(text)), "")


def kitchen(text: str) -> dict[str, Any] | None:
    """The kitchen at the end of a transcript: its places, the player's position, and objects seen or moved.

    ``{"kitchen": {"places": ["fridge 1", …], "at": "fridge 1", "holds": "mug 1", "in": {"fridge 1": ["egg 1"]},
    "open": ["fridge 1"]}}``; None if the text is not from a kitchen. An object's state follows its name:
    ``egg 1 (hot)``.
    """
    start = text.find(_OPENING)
    room = _ROOM.search(text, start) if start >= 0 else None
    if room is None:
        return None
    places = [_bare(one) for one in re.split(r",\s*(?:and\s+)?|(?<!\s)\s+and\s+", room[1])]
    at, holds = "", ""
    held: dict[str, list[str]] = {}
    opened: list[str] = []
    states: dict[str, list[str]] = {}
    for event in _EVENT.finditer(text, room.end()):
        said = event[0]
        if match := _ARRIVE.match(said):
            at = match[1]
        elif match := _TAKE.match(said):
            holds = match[1]
            held[match[2]] = [one for one in held.get(match[2], []) if one != holds]
        elif match := _PUT.match(said):
            holds = ""
            held[match[2]] = [*held.get(match[2], []), match[1]]
        elif match := _SEEN.match(said):
            place = match[1] or at
            held[place] = [] if match[2].strip() == "nothing" else [_bare(one) for one in match[2].split(", ")]
        elif match := _OPENED.match(said):
            opened = [*(one for one in opened if one != match[1]), match[1]]
        elif match := _CLOSED.match(said):
            opened = [one for one in opened if one != match[1]]
        elif match := _TREATED.match(said):
            undone = {"heat": "cold", "cool": "hot"}.get(match[1])
            before = [one for one in states.get(match[2], []) if one not in (undone, _STATES[match[1]])]
            states[match[2]] = [*before, _STATES[match[1]]]
        elif match := _LIT.match(said):
            states[match[1]] = ["lit"]

    def told(thing: str) -> str:
        return f"{thing} ({', '.join(states[thing])})" if thing in states else thing

    inside = {place: [told(thing) for thing in things] for place, things in held.items()}
    room_now = {"places": [one for one in places if one], "at": at, "holds": told(holds), "in": inside, "open": opened}
    return {"kitchen": room_now}


class Seen:
    """The scene revealed by an episode's messages so far: a taxi's grid, or a kitchen, which accumulates."""

    def __init__(self) -> None:
        self._told = ""

    def text(self, text: str) -> dict[str, Any] | None:
        """The scene after a message; None if there is nothing to draw."""
        if (grid := taxi(text)) is not None:
            return grid
        self._told = text if _OPENING in text else self._told and f"{self._told}\n{text}"
        return kitchen(self._told) if self._told else None

    def step(self, action: str, observation: str) -> dict[str, Any] | None:
        """The scene after an action."""
        return self.text(observation)


class Inventory:
    """A crafter's inventory, tracked through the actions and the environment's answers."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def text(self, text: str) -> None:
        """Goal and recipes: nothing to draw."""

    def step(self, action: str, observation: str) -> dict[str, Any]:
        """The inventory after an action: ``{"carries": {"oak log": 2}}``."""
        if observation.startswith("Got ") and (match := _GET.match(action)):
            self._add(match[2].strip(), int(match[1]))
        elif (made := _CRAFTED.match(observation)) and (match := _CRAFT.match(action)):
            for part in match[1].split(","):
                if used := _COUNTED.fullmatch(part.strip()):
                    self._add(used[2], -int(used[1]))
            self._add(made[2].replace("_", " "), int(made[1]))
        return {"carries": dict(self.items)}

    def _add(self, item: str, count: int) -> None:
        self.items[item] = self.items.get(item, 0) + count
        if self.items[item] <= 0:
            del self.items[item]


def _bare(thing: str) -> str:
    """``and a cabinet 2`` -> "cabinet 2"."""
    return re.sub(r"^(?:and\s+)?(?:an?|some)\s+", "", " ".join(thing.split()))
