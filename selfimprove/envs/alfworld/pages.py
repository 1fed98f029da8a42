"""Pretraining text about kitchens: a room, the actions and observations of an aimless visitor, and where things are.

A page::

    You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a fridge 1, and a shelf 1.
    go to fridge 1
    You arrive at fridge 1. The fridge 1 is closed.
    open fridge 1
    You open the fridge 1. The fridge 1 is open. In it, you see a plate 1, and a winebottle 1.
    Where is the plate 1?                                   the fridge 1
    Which task is about a plate? heat some plate and put it in cabinet
"""

from random import Random

from selfimprove.envs.alfworld.kitchen_games import TRAIN, make_game
from selfimprove.envs.alfworld.kitchen_rules import Deed, command, deeds, do, first_scene, is_reachable, look
from selfimprove.envs.passages import Passage

_SEED = "pages"
_AIMLESS = ("look", "inventory", "help")


def visit(draws: Random) -> list[Passage]:
    """A room and four to nine deeds in it, not directed at any goal."""
    game = make_game(_SEED, draws.choice(TRAIN))  # a separate seed: no method plays these games
    scene = first_scene(game)
    page = [Passage(look(game, scene))]
    places: set[int] = set()
    for _ in range(draws.randint(4, 9)):
        possible = [deed for deed in deeds(game, scene) if deed.verb not in _AIMLESS]
        near = [deed for deed in possible if deed.verb != "go"]
        deed: Deed = draws.choice(near if near and draws.random() < 0.7 else possible)
        scene, seen = do(game, scene, deed)
        page.append(Passage(f"{command(game, deed)}\n{seen}"))
        if scene.at >= 0 and is_reachable(game, scene, scene.at):
            places.add(scene.at)
        known = [thing for thing, at in enumerate(scene.where) if at in places]
        if known and draws.random() < 0.4:
            thing = draws.choice(known)
            page.append(
                Passage(f"Where is the {game.things[thing]}?", f"the {game.receptacles[scene.where[thing]]}", "lookup")
            )
        if scene.held is not None and draws.random() < 0.2:
            page.append(Passage("What is in hand?", f"the {game.things[scene.held]}", "lookup"))
    page.append(
        Passage(
            f"Your task is to: {game.sentence}.\nWhat is it about?", f"{game.goal.thing}, {game.goal.place}", "copying"
        )
    )
    return page
