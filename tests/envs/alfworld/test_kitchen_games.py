"""The text kitchen's games: what there is of each kind, what they depend on, and how tasks are chosen of them."""

import re
from collections import Counter

from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_games import TRAIN, VALID, make_game
from selfimprove.envs.alfworld.kitchen_rules import first_scene, is_won
from selfimprove.envs.alfworld.kitchen_things import APPLIANCES, DONE_TO, HOLDS, KINDS, LAMP, RECEPTACLES, THINGS, goals


def test_every_kind_has_many_games_and_no_game_begins_won_or_with_a_thing_where_it_cannot_be() -> None:
    kinds, sentences = Counter[str](), set[str]()
    for task in [*TRAIN[:600], *VALID[:300]]:
        played = make_game(0, task)
        kinds[played.goal.kind] += 1
        sentences.add(played.sentence)
        assert not is_won(played, first_scene(played))
        assert all(kind == LAMP or played.fits(i, played.first[i]) for i, kind in enumerate(played.thing_kinds))
        assert len(set(played.things)) == len(played.things)
        assert played.goal.place == LAMP or played.goal.place in played.receptacle_kinds
    assert set(kinds) == set(KINDS)
    assert set(kinds.values()) == {150}
    assert len(sentences) > 350


def test_catalogue_holds_together() -> None:
    assert set(RECEPTACLES) == set(HOLDS)
    always = [kind for kind, (least, _) in RECEPTACLES.items() if least]
    assert all(sum(thing in HOLDS[kind] for kind in always) >= 2 for thing in THINGS)  # also when one is the goal
    assert all(APPLIANCES[kind] in always for kind in DONE_TO)
    assert all(goal.place != APPLIANCES.get(kind) for kind in KINDS for goal in goals(kind))


def test_games_depend_on_seed_and_number_alone_and_valid_games_are_new() -> None:
    make_game.cache_clear()
    first = make_game(0, 17)
    assert (first.sentence, first.receptacles[:2], first.things[:2], first.first[:4]) == (
        "put two knife in countertop",
        ("cabinet 4", "cabinet 3"),
        ("bowl 1", "butterknife 1"),
        (13, 15, 13, 15),
    )
    make_game.cache_clear()
    for task in range(40):
        make_game(0, task)
    assert make_game(0, 17) == first
    assert make_game(1, 17) != first
    rooms = {(game.receptacles, game.things, game.first) for game in (make_game(0, task) for task in TRAIN[::3])}
    assert not any((g.receptacles, g.things, g.first) in rooms for g in (make_game(0, task) for task in VALID[::5]))


def test_splits_and_kinds_choose_the_tasks() -> None:
    env = Kitchen()
    assert list(env.task_ids()) == [*env.task_ids("train"), *env.task_ids("valid")] == list(range(6600))
    paper = Kitchen(kinds=["pick_and_place"], thing="tomato", place="microwave")
    tasks = paper.task_ids("valid")
    assert len(tasks) == 100
    for task in tasks[:20]:
        assert re.search(r"put (a tomato in|some tomato on) microwave\.$", paper.reset(task))
    assert {KINDS[task % 6] for task in Kitchen(place="fridge").task_ids()} == {*KINDS} - {"cool", "look_in_light"}
