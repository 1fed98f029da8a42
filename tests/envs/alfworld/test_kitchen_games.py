"""The text kitchen's games: their kinds, what a game depends on, and how splits and kinds select the tasks."""

import re
from collections import Counter

from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_games import TRAIN, VALID, make_game
from selfimprove.envs.alfworld.kitchen_rules import first_scene, is_won
from selfimprove.envs.alfworld.kitchen_things import APPLIANCES, DONE_TO, HOLDS, KINDS, LAMP, RECEPTACLES, THINGS, goals


def test_kinds_are_equally_frequent_and_no_game_starts_won_or_with_a_misplaced_thing() -> None:
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


def test_catalogue_is_consistent() -> None:
    assert set(RECEPTACLES) == set(HOLDS)
    always = [kind for kind, (least, _) in RECEPTACLES.items() if least]
    assert all(sum(thing in HOLDS[kind] for kind in always) >= 2 for thing in THINGS)  # one may be the goal
    assert all(APPLIANCES[kind] in always for kind in DONE_TO)
    assert all(goal.place != APPLIANCES.get(kind) for kind in KINDS for goal in goals(kind))


def test_games_depend_only_on_seed_and_number_and_valid_games_are_not_in_train() -> None:
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


def test_splits_kinds_things_and_places_select_the_tasks() -> None:
    env = Kitchen()
    assert list(env.task_ids()) == [*env.task_ids("train"), *env.task_ids("valid")] == list(range(6600))
    paper = Kitchen(kinds=["pick_and_place"], thing="tomato", place="microwave")
    tasks = paper.task_ids("valid")
    assert len(tasks) == 100
    for task in tasks[:20]:
        assert re.search(r"put (a tomato in|some tomato on) microwave\.$", paper.reset(task))
    assert {KINDS[task % 6] for task in Kitchen(place="fridge").task_ids()} == {*KINDS} - {"cool", "look_in_light"}
