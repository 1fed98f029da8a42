"""Pictures of environments, read from an episode's text, show the environment's state."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.apps.page import scenes
from selfimprove.apps.page.episodes import to_page
from selfimprove.envs.taxi.listed import EnumeratedTaxi


def test_a_taxi_s_grid_is_read_from_its_text() -> None:
    text = "Current State\n\n+---------+\n|P: | : : |\n|T: | : : |\n| : : : : |\n| | : | : |\n|D| : | : |\n+---------+"
    assert scenes.Seen().text(text) == {"taxi": ["P: | : : ", "T: | : : ", " : : : : ", " | : | : ", "D| : | : "]}


def test_a_kitchen_is_read_from_its_transcript() -> None:
    text = (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a fridge 1, and a microwave "
        "1."
        "\n\nYour task is to: heat some plate and put it in cabinet.\nYou arrive at fridge 1. The fridge 1 is closed.\n"
        "You open the fridge 1. The fridge 1 is open. In it, you see a plate 1, and a winebottle 1.\n"
        "You pick up the plate 1 from the fridge 1.\nYou arrive at cabinet 2. On the cabinet 2, you see nothing."
    )
    room = scenes.kitchen(text)
    assert room is not None
    hot = scenes.kitchen(
        f"{text}\nYou cool the plate 1 using the fridge 1.\nYou heat the plate 1 using the microwave 1."
    )
    assert hot is not None
    assert hot["kitchen"]["holds"] == "plate 1 (hot)"
    assert room["kitchen"] == {
        "places": ["cabinet 2", "fridge 1", "microwave 1"], "at": "cabinet 2", "holds": "plate 1",
        "in": {"fridge 1": ["winebottle 1"], "cabinet 2": []}, "open": ["fridge 1"],
    }  # fmt: skip


def test_the_kitchen_read_from_observations_equals_the_environment_s_state() -> None:
    from selfimprove.envs.alfworld.kitchen import Kitchen
    from selfimprove.envs.alfworld.kitchen_games import make_game
    from selfimprove.envs.alfworld.kitchen_rules import IN_HAND

    game = Kitchen()
    for task in range(30):
        drawn, rules = scenes.Seen(), make_game(0, task)
        shown = drawn.text(game.reset(task))
        for move in game.expert():
            shown = drawn.step(move.action, game.step(move.action).observation)
            assert shown is not None
            room, scene = shown["kitchen"], game.snapshot().scene
            assert room["places"] == list(rules.receptacles)
            assert room["at"] == (rules.receptacles[scene.at] if scene.at >= 0 else "")
            assert set(room["open"]) == {rules.receptacles[place] for place in scene.opened}
            where = dict(zip(rules.things, scene.where, strict=True))
            held = [thing for thing, place in where.items() if place == IN_HAND]
            assert [room["holds"].partition(" (")[0]] == (held or [""])
            for place, things in room["in"].items():
                inside = {thing for thing, at in where.items() if at == rules.receptacles.index(place)}
                assert {thing.partition(" (")[0] for thing in things} == inside
    assert shown is not None


def test_the_inventory_read_from_observations_equals_the_environment_s_state(tmp_path: Path) -> None:
    from selfimprove.envs.registry import text_env

    game = text_env(name="textcraft", seed=7).make()
    for task in range(40):
        game.reset(task)
        carried = scenes.Inventory()
        for move in game.expert():
            answer = game.step(move.action)
            shown = carried.step(move.action, answer.observation)["carries"]
            held = {item.split(":")[-1].replace("_", " "): count for item, count in game.snapshot().inventory}
            assert shown == held


def test_an_amount_of_thousands_of_digits_is_no_item() -> None:
    carried = scenes.Inventory()
    for action, said in ((f"get {'9' * 5000} oak", "Got 9 oak"), ("get 2 oak", "Got 2 oak")):
        carried.step(action, said)
    assert carried.items == {"oak": 2}


@pytest.mark.parametrize(
    "text", ["a cabinet 1. \n" + "You put the a in the " * 5_000, "a cabinet 1" + " " * 100_000 + ". \n"]
)
def test_a_text_of_a_hundred_thousand_characters_is_read_in_linear_time(text: str) -> None:
    """In quadratic or cubic time, this took from a minute to many days."""
    assert scenes.kitchen(f"Looking quickly around you, you see {text}") is not None
    carried = scenes.Inventory()
    carried.step(f"craft 1 oak using 1 a{' ' * 100_000}b", "Crafted 1 oak")
    assert carried.items == {"oak": 1}


@pytest.mark.parametrize("with_history", [False, True])
def test_a_reflection_that_misreads_the_taxi_s_map_is_marked_and_counted(with_history: bool) -> None:
    env = EnumeratedTaxi(with_history=with_history)
    steps = []
    env.reset(61)
    for said in ("The passenger is one row north.", "The passenger is one row north.", "That was a detour."):
        steps.append({"prompt": env.state().pre, "reflection": said, "label": "1", "cost": 0.05})
        env.step("1")
    shown = to_page({"id": "61", "env": "taxi", "task_id": 61, "status": "unsolved", "seed": "17/61", "steps": steps})
    assert [said.get("misread", False) for said in shown["m"] if said["r"] == "reflector"] == [False, True, False]
    assert (shown["n"], shown["x"], shown["z"]) == (3, 0, 1)
