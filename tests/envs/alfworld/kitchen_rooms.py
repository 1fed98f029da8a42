"""For the tests of the text kitchen: a game in a small room with given things, and a walk through it."""

from typing import Any

from selfimprove.envs.alfworld.kitchen_games import KitchenGame
from selfimprove.envs.alfworld.kitchen_rules import Scene, command, deeds, do, first_scene
from selfimprove.envs.alfworld.kitchen_things import Goal

ROOM = ("cabinet 2", "cabinet 1", "countertop 1", "drawer 1", "fridge 1", "microwave 1", "sinkbasin 1")


def game(kind: Any, thing: Any, place: Any, **where: str) -> KitchenGame:
    """A game with these things, each with its place: ``apple_1="fridge 1"``."""
    names = tuple(name.replace("_", " ") for name in where)
    return KitchenGame(
        0, Goal(kind, thing, place), "do it", ROOM, names, tuple(ROOM.index(at) for at in where.values())
    )


def follow(played: KitchenGame, *commands: str) -> list[tuple[Scene, str]]:
    scene, path = first_scene(played), []
    for text in commands:
        known = {command(played, deed): deed for deed in deeds(played, scene)}
        scene, answer = do(played, scene, known[text])
        path.append((scene, answer))
    return path
