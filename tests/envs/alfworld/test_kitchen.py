"""The text kitchen: ALFWorld's wording and rules, six kinds of goals, arbitrary text as an action."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selfimprove.envs.alfworld.kitchen as module
from selfimprove.envs.alfworld.kitchen import Kitchen, KitchenSnapshot
from selfimprove.envs.alfworld.kitchen_expert import plan
from selfimprove.envs.alfworld.kitchen_games import KitchenGame, make_game
from selfimprove.envs.alfworld.kitchen_rules import MIDDLE, command, deeds, do, first_scene, is_won
from selfimprove.envs.alfworld.kitchen_things import LAMP
from selfimprove.envs.listed import action_list, state_text
from tests.envs.alfworld.kitchen_rooms import ROOM, follow, game
from tests.support.sentences import refused_with


def answers(played: KitchenGame, *commands: str) -> list[str]:
    """The rules' answer to each command; all commands must be admissible."""
    return [answer for _, answer in follow(played, *commands)]


def commands_at(played: KitchenGame, *before: str) -> set[str]:
    scene = follow(played, *before)[-1][0] if before else first_scene(played)
    return {command(played, deed) for deed in deeds(played, scene)}


def test_the_example_episode_in_the_module_docstring_is_accurate() -> None:
    text = module.__doc__.split("::\n\n", 1)[1].split("\n\nThe rules and", 1)[0]
    number = int(re.search(r"game (\d+)", module.__doc__)[1])  # type: ignore[index]
    env = Kitchen()
    played = env.reset(number)
    for move in env.expert():
        step = env.step(move.action)
        played += f"\nThought: {move.thought}\nAction: {move.action}\n{step.observation}"
    assert text.split() == played.split()  # the docstring wraps long lines
    assert (step.reward, step.done) == (1, True)


def test_observations_have_alfworlds_wording() -> None:
    played = game("pick_and_place", "apple", "drawer", apple_2="fridge 1", apple_1="fridge 1", knife_1="countertop 1")
    assert answers(played, "look", "inventory") == [
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, "
        "a countertop 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.",
        "You are not carrying anything.",
    ]
    assert answers(played, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "inventory", "look") == [
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 2, and a apple 1.",
        "You pick up the apple 2 from the fridge 1.",
        "You are carrying: a apple 2.",
        "You are facing the fridge 1. Next to it, you see nothing.",
    ]
    assert answers(played, "go to countertop 1", "examine countertop 1", "go to cabinet 1", "open cabinet 1") == [
        "You arrive at countertop 1. On the countertop 1, you see a knife 1.",
        "On the countertop 1, you see a knife 1.",
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see nothing.",
    ]
    taken = ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to sinkbasin 1")
    assert answers(played, *taken, "clean apple 1 with sinkbasin 1", "move apple 1 to sinkbasin 1")[-2:] == [
        "You clean the apple 1 using the sinkbasin 1.",
        "You move the apple 1 to the sinkbasin 1.",
    ]
    assert answers(played, *taken[:2], "close fridge 1", "help")[-2] == "You close the fridge 1."


def test_examining_a_thing_shows_what_was_done_to_it() -> None:
    played = game("clean", "apple", "drawer", apple_1="countertop 1")
    wash, heat, cool = (
        ("go to sinkbasin 1", "clean apple 1 with sinkbasin 1"),
        ("go to microwave 1", "heat apple 1 with microwave 1"),
        ("go to fridge 1", "cool apple 1 with fridge 1"),
    )
    for done, words in [
        ((), "There's nothing special about apple 1."),
        (wash, "This is a clean apple 1."),
        (heat, "This is a hot apple 1."),
        (cool, "This is a cold apple 1."),
        (heat + cool, "This is a cold apple 1."),
        (cool + heat, "This is a hot apple 1."),
        (heat + wash, "This is a hot and clean apple 1."),
        (wash + cool, "This is a cool and clean apple 1."),
    ]:
        taken = ("go to countertop 1", "take apple 1 from countertop 1", *done, "examine apple 1")
        assert answers(played, *taken)[-1] == words


def test_slicing_requires_a_knife_in_hand_and_the_thing_in_reach() -> None:
    played = game("clean", "apple", "drawer", knife_1="countertop 1", apple_2="countertop 1", apple_1="fridge 1")
    knife = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "slice apple 2 with knife 1" not in commands_at(played, knife[0])
    assert "slice apple 2 with knife 1" in commands_at(played, *knife)
    assert "slice apple 1 with knife 1" not in commands_at(played, *knife, "go to fridge 1")  # behind the closed door
    assert "slice apple 1 with knife 1" in commands_at(played, *knife, "go to fridge 1", "open fridge 1")
    sliced = (*knife, "slice apple 2 with knife 1", "move knife 1 to countertop 1", "take apple 2 from countertop 1")
    assert answers(played, *sliced)[2] == "You sliced the apple 2 with the knife 1."
    assert answers(played, *sliced, "examine apple 2")[-1] == "This is a sliced apple 2."
    washed = (*sliced, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "examine apple 2")
    assert answers(played, *washed)[-1] == "This is a clean sliced apple 2."


def test_admissible_commands_depend_on_the_place_the_held_thing_and_open_doors() -> None:
    played = game("heat", "apple", "drawer", apple_1="fridge 1", fork_1="sinkbasin 1", desklamp_1="countertop 1")
    always = {"look", "inventory", "help"}
    assert commands_at(played) == always | {f"go to {name}" for name in ROOM}
    fridge = always | {f"go to {name}" for name in ROOM if name != "fridge 1"} | {"examine fridge 1"}
    assert commands_at(played, "go to fridge 1") == fridge | {"open fridge 1"}
    opened = ("go to fridge 1", "open fridge 1")
    assert commands_at(played, *opened) == fridge | {"close fridge 1", "take apple 1 from fridge 1"}
    holding = fridge | {"close fridge 1", "examine apple 1", "move apple 1 to fridge 1", "cool apple 1 with fridge 1"}
    assert commands_at(played, *opened, "take apple 1 from fridge 1") == holding
    lamp = always | {f"go to {name}" for name in ROOM if name != "countertop 1"} | {"examine countertop 1"}
    assert commands_at(played, "go to countertop 1") == lamp | {"use desklamp 1"}  # a lamp can't be taken
    in_hand = (*opened, "take apple 1 from fridge 1", "go to sinkbasin 1")
    assert not any(text.startswith("take fork") for text in commands_at(played, *in_hand))  # one thing at a time


PUT = "go to cabinet 1|open cabinet 1|move mug 2 to cabinet 1"


@pytest.mark.parametrize(
    ("kind", "way", "won_at"),
    [
        ("pick_and_place", f"take mug 2|{PUT}", 4),
        ("pick_and_place", f"take plate 1|{PUT.replace('mug 2', 'plate 1')}", None),
        ("clean", f"take mug 2|go to sinkbasin 1|clean mug 2|{PUT}", 6),
        ("heat", f"take mug 2|go to microwave 1|heat mug 2|{PUT}", 6),
        ("cool", f"take mug 2|go to fridge 1|cool mug 2|{PUT}", 6),
        ("clean", f"take mug 2|{PUT}", None),
        ("heat", f"take mug 2|{PUT}", None),
        ("cool", f"take mug 2|{PUT}", None),
        ("heat", f"take mug 2|go to microwave 1|heat mug 2|go to fridge 1|cool mug 2|{PUT}", None),  # cold again
        ("cool", f"take mug 2|go to fridge 1|cool mug 2|go to microwave 1|heat mug 2|{PUT}", None),
        ("pick_two", f"take mug 2|{PUT}|go to countertop 1|take mug 1|{PUT.replace('mug 2', 'mug 1')}", 8),
        ("pick_two", f"take mug 2|{PUT}|go to countertop 1|take mug 1|{PUT.replace('cabinet 1', 'cabinet 2')}", None),
        ("look_in_light", "take mug 2|use desklamp 1", 2),
        ("look_in_light", "use desklamp 1|take mug 2", 2),
        ("look_in_light", "use desklamp 1|take plate 1", None),
        ("look_in_light", "take mug 2|go to cabinet 1", None),
        ("look_in_light", "use desklamp 1|go to cabinet 1|go to countertop 1|take mug 2", 4),
    ],
)
def test_each_kind_of_goal_is_won_exactly_when_it_is_reached(kind: str, way: str, won_at: int | None) -> None:
    """Commands are given by their prefixes; inadmissible ones (opening a door that is open) are skipped."""
    place = LAMP if kind == "look_in_light" else "cabinet"
    played = game(kind, "mug", place, **dict.fromkeys(("mug_2", "mug_1", "plate_1", "desklamp_1"), "countertop 1"))
    scene, won = follow(played, "go to countertop 1")[-1][0], []
    for text in way.split("|"):
        for deed in deeds(played, scene):
            if command(played, deed).startswith(text):
                scene = do(played, scene, deed)[0]
                won.append(is_won(played, scene))
                break
    assert len(won) > 1
    assert won == [i + 1 == won_at for i in range(len(won))]


def test_a_lamp_gives_light_only_where_it_stands() -> None:
    played = game("look_in_light", "mug", LAMP, mug_1="sinkbasin 1", desklamp_1="countertop 1")
    way = ("go to countertop 1", "use desklamp 1", "go to sinkbasin 1", "take mug 1 from sinkbasin 1")
    path = follow(played, *way, "go to countertop 1")
    assert [is_won(played, scene) for scene, _ in path] == [False] * 4 + [True]
    assert [deed.verb for deed in plan(played, path[3][0])] == ["go"]


def test_state_text_is_the_first_observation_then_every_action_with_its_observation() -> None:
    assert state_text("Room.", []) + action_list([("0", "look"), ("a", "help")]) == (
        "Room.\n\nThe actions you can take now is:\nAction 0: look\nAction a: help"
    )
    path = [("look", "You see."), ("go to shelf 1", "You arrive.")]
    assert state_text("Room.", path) + action_list([("0", "look")]) == (
        "Room.\n\nHere is the previous path:\n--- Step: 0 ---\nAction: look\nObservation: You see.\n\n"
        "--- Step: 1 ---\nAction: go to shelf 1\nObservation: You arrive.\n\n\n\n"
        "The actions you can take now is:\nAction 0: look"
    )


def test_max_turns_truncates_the_episode_and_invalid_actions_count_as_turns() -> None:
    env = Kitchen(max_turns=3)
    env.reset(0)
    steps = [env.step(action) for action in ("look", "fly", "look")]
    assert [step.done for step in steps] == [False, False, True]
    assert [step.info["valid"] for step in steps] == [True, False, True]
    assert steps[1].observation == "Nothing happens."
    assert (steps[2].info["truncated"], steps[2].info["terminated"], steps[2].reward) == (True, False, 0)
    assert env.valid_actions() == []
    moment = env.snapshot()
    assert env.step("look").observation == "Nothing happens."
    assert env.snapshot() == moment
    env.reset(0)
    assert len(env.oracle()) > 3  # a plan exists, but exceeds max_turns
    assert env.expert() == []
    env = Kitchen(max_turns=len(env.oracle()))
    env.reset(0)
    assert len(env.expert()) == len(env.oracle())
    assert env.step(" look\n").info["valid"]  # surrounding whitespace is ignored
    assert len(env.oracle()) > 3
    assert env.expert() == []  # one turn too few


@settings(max_examples=100)
@given(st.integers(0, 6599), st.lists(st.one_of(st.text(), st.integers(0, 10**6)), max_size=18))
def test_any_text_gets_an_answer_and_inadmissible_text_changes_nothing(task: int, actions: list[str | int]) -> None:
    """An integer selects one of the admissible commands."""
    env = Kitchen()
    env.reset(task)
    done = False
    for action in actions:
        known = env.valid_actions()
        assert known == sorted(known)
        text = known[action % len(known)] if isinstance(action, int) and known else str(action)
        before = env.snapshot()
        step = env.step(text)
        assert step.info["valid"] == (text.strip() in known)
        assert step.info["valid"] or (step.observation == "Nothing happens." and env.snapshot().scene == before.scene)
        assert step.reward == step.info["raw_score"] == (1 if step.info["terminated"] else 0)
        assert step.done or not done
        done = step.done


def test_a_snapshot_restores_its_state_in_any_copy_and_does_not_affect_others() -> None:
    env, other = Kitchen(), Kitchen()
    other.reset(8)
    untouched = other.snapshot()
    env.reset(3)
    way = env.oracle()
    env.step(way[0])
    moment = env.snapshot()
    assert isinstance(moment, KitchenSnapshot)
    assert hash(moment) == hash(env.snapshot())
    seen = [env.step(action) for action in way[1:]]
    assert other.snapshot() == untouched
    for copy in (env, other):
        copy.restore(moment)
        assert copy.oracle() == way[1:]
        assert [copy.step(action) for action in way[1:]] == seen


def test_the_first_scene_is_in_the_middle_of_the_room() -> None:
    assert first_scene(make_game(0, 0)).at == MIDDLE


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kinds": ["fly"]}, "no kind of goal 'fly'; choose one of pick_and_place"),
        ({"thing": "elephant"}, "no game has the requested thing 'elephant' and place None; choose others"),
        ({"thing": "tomato", "place": "drawer"}, "thing 'tomato' and place 'drawer'"),
        ({"kinds": []}, "no game has the requested kind"),
        ({"max_turns": 0}, "max_turns must be at least 1, not 0"),
    ],
)
def test_bad_arguments_are_reported_in_one_clear_sentence(arguments: dict, sentence: str) -> None:
    with refused_with(sentence):
        Kitchen(**arguments)


@pytest.mark.parametrize("task", [-1, 6600, 1])
def test_an_unknown_game_is_reported_in_one_clear_sentence(task: int) -> None:
    with refused_with(rf"no game {task} of heat; see task_ids\(\)"):
        Kitchen(kinds=["heat"]).reset(task)


def test_an_unknown_split_is_reported_in_one_clear_sentence() -> None:
    with refused_with("no split 'test'; choose train or valid"):
        Kitchen().task_ids("test")  # type: ignore[arg-type]
