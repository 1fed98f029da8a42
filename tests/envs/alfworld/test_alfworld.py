"""ALFWorld without its packages: PDDL problems, game sets in folders, the blacklist, errors of a bad installation."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.alfworld.env import AlfWorld, explained
from selfimprove.envs.alfworld.games import Blacklist, DownloadedGames, GeneratedGames, make_games
from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_games import make_game
from selfimprove.envs.alfworld.kitchen_things import KINDS, Goal
from selfimprove.envs.alfworld.pddl import goal_formula, problem
from selfimprove.envs.alfworld.process import AlfWorldProcess
from selfimprove.envs.alfworld.worker import named
from selfimprove.envs.registry import listed_env


@pytest.mark.parametrize("task", range(0, 600, 7))
def test_a_pddl_problem_describes_the_same_game_as_the_kitchen(task: Any) -> None:
    game = make_game(3, task)
    text = problem(game)
    assert text.count("(") == text.count(")")
    assert text.isascii()
    declared = re.findall(r"(\S+) - (\w+)", text.split("(:init")[0])
    assert len({name.lower() for name, _ in declared}) == len(declared)
    used = set(re.findall(r"[\w]+_bar_\w+|place_\w+", text.split("(:init")[1]))
    assert used <= {name for name, _ in declared}
    names = named(sorted(name for name, kind in declared if kind in ("receptacle", "object")))
    inside = re.findall(r"\(inReceptacle (\S+) (\S+)\)", text.split("(:goal")[0])
    first = {thing: game.receptacles[where] for thing, where in zip(game.things, game.first, strict=True)}
    assert {names[thing]: names[receptacle] for thing, receptacle in inside} == first
    assert names.keys() >= {name for name, kind in declared if kind == "receptacle"}
    assert {names[name] for name, kind in declared if kind == "receptacle"} == set(game.receptacles)
    assert problem(make_game(3, task)) == text


@pytest.mark.parametrize(
    ("goal", "facts"),
    [
        (Goal("pick_and_place", "egg", "fridge"), ["inReceptacle ?o ?r", "objectType ?o EggType", "?r FridgeType"]),
        (Goal("look_in_light", "book", "desklamp"), ["isToggled ?t", "objectType ?t DesklampType", "holds ?a ?o"]),
        (Goal("clean", "egg", "fridge"), ["cleanable ?o", "isClean ?o"]),
        (Goal("heat", "egg", "fridge"), ["heatable ?o", "isHot ?o"]),
        (Goal("cool", "egg", "microwave"), ["coolable ?o", "isCool ?o"]),
        (Goal("pick_two", "egg", "fridge"), ["inReceptacle ?p ?r", "not (= ?o ?p)"]),
    ],
)
def test_each_of_the_six_task_types_has_its_goal_formula(goal: Any, facts: Any) -> None:
    formula = goal_formula(goal)
    assert formula.startswith("(exists (")
    assert all(fact in formula for fact in facts)
    assert formula.count("(") == formula.count(")")


def test_generated_games_have_the_same_numbers_as_the_kitchens(tmp_path: Path) -> None:
    games, kitchen = GeneratedGames(0, ["pick_and_place"], "tomato", "microwave"), None
    kitchen = Kitchen(0, ["pick_and_place"], "tomato", "microwave")
    for split in (None, "train", "valid"):
        assert list(games.task_ids(split)) == list(kitchen.task_ids(split))
    game = games.game(6)
    assert game.goal == ("pick_and_place", "tomato", "microwave")
    assert kitchen.reset(6).endswith(f"Your task is to: {game.sentence}.")
    assert (game.id, make_games(None, 1, KINDS, None, None).id(6)) == ("kitchen-0-6-tomato-microwave", "kitchen-1-6")
    with pytest.raises(UserError, match="there is no game 1 of pick_and_place"):
        games.game(1)
    with pytest.raises(UserError, match="no game has the requested thing 'piano'"):
        GeneratedGames(0, KINDS, "piano", None)


def plant(
    folder: Path,
    name: Any,
    task_type: str = "pick_heat_then_place_in_recep",
    made: Any = None,
    problem: str = "(problem)",
    **wanted: Any,
) -> None:
    trial = folder / name
    trial.mkdir(parents=True)
    wanted = {"object_target": "Egg", "parent_target": "Fridge", "toggle_target": "", "object_sliced": False} | wanted
    (trial / "traj_data.json").write_text(json.dumps({"task_type": task_type, "pddl_params": wanted}))
    if problem:
        (trial / "initial_state.pddl").write_text(problem)
    if made is not None:
        (trial / "game.tw-pddl").write_text(json.dumps(made))


def test_a_game_set_is_read_in_path_order_without_unsupported_games(tmp_path: Path) -> None:
    grammar = '{"task": [{"rhs": "Your task is to: heat some egg and put it in fridge."}]}'
    plant(tmp_path, "valid_seen/b", made={"pddl_problem": "(made)", "grammar": grammar, "solvable": True})
    plant(tmp_path, "train/a")
    plant(tmp_path, "train/c", "look_at_obj_in_light", toggle_target="DeskLamp")
    plant(tmp_path, "train/unsolvable", made={"pddl_problem": "(x)", "solvable": False})
    plant(tmp_path, "train/movable-x")
    plant(tmp_path, "train/pick-EggSliced-x")
    plant(tmp_path, "train/sliced", object_sliced=True)
    plant(tmp_path, "train/seventh", "pick_and_juggle")
    plant(tmp_path, "train/nothing", problem="")
    games = DownloadedGames(tmp_path)
    assert [games.id(task) for task in games.task_ids()] == ["train/a", "train/c", "valid_seen/b"]
    assert (list(games.task_ids("train")), list(games.task_ids("valid"))) == ([0, 1], [2])
    assert (games.game(0).problem, games.game(2).problem) == ("(problem)", "(made)")
    assert games.game(0).sentence in ("put a hot egg in fridge", "heat some egg and put it in fridge")
    assert games.game(2).sentence == "heat some egg and put it in fridge"
    assert games.game(1).goal == ("look_in_light", "egg", "desklamp")
    assert list(DownloadedGames(tmp_path, ["heat"]).task_ids()) == [0, 1]
    with pytest.raises(UserError, match="no game has the requested thing 'mug'"):
        DownloadedGames(tmp_path, thing="mug")
    with pytest.raises(UserError, match="there is no game 3; choose one from 0 to 2"):
        games.game(3)


@pytest.mark.parametrize(
    "grammar", ["", "Your task is to: #evil#.", "Your task is to: {__import__('os')}.", "Your task is to: " + "x" * 300]
)
def test_only_a_plain_sentence_is_accepted_from_a_games_grammar(tmp_path: Path, grammar: str) -> None:
    plant(tmp_path, "a", made={"pddl_problem": "(x)", "grammar": grammar, "solvable": True})
    assert "egg" in DownloadedGames(tmp_path).game(0).sentence


def test_a_folder_that_is_not_a_game_set_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a folder; name the one that alfworld-download filled"):
        DownloadedGames(tmp_path / "missing")
    with pytest.raises(UserError, match="contains no ALFWorld games"):
        DownloadedGames(tmp_path)
    plant(tmp_path, "a")
    (tmp_path / "a" / "traj_data.json").write_text("{torn")
    with pytest.raises(UserError, match=r"traj_data\.json is not JSON .*; restore it"):
        DownloadedGames(tmp_path)


def test_the_blacklist_keeps_all_entries_and_cannot_be_inside_the_game_set(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "black.json"
    Blacklist(path).add("b", "it hung")
    again = Blacklist(path)
    again.add("a", "it crashed")
    assert json.loads(path.read_text()) == {"a": "it crashed", "b": "it hung"} == Blacklist(path).reasons
    assert [found.name for found in path.parent.iterdir()] == ["black.json"]
    with pytest.raises(UserError, match="must not be inside the game set"):
        Blacklist(tmp_path / "games" / "x" / "black.json", tmp_path / "games")
    path.write_text("[]")
    with pytest.raises(UserError, match="not a blacklist"):
        Blacklist(path)


def test_two_stages_that_run_at_the_same_time_keep_each_other_s_entries(tmp_path: Path) -> None:
    path = tmp_path / "black.json"
    one, other = Blacklist(path), Blacklist(path)
    one.add("a", "it crashed")
    other.add("b", "it hung")
    assert Blacklist(path).reasons == {"a": "it crashed", "b": "it hung"}
    assert other.reasons == {"b": "it hung"}  # a running stage keeps its own tasks


def test_blacklisted_games_are_excluded_from_the_tasks() -> None:
    black = Blacklist()
    black.add("kitchen-0-0", "it hung")
    env = AlfWorld(kinds=["pick_and_place"], blacklist=black)
    assert list(env.task_ids("train"))[:2] == [6, 12]
    assert list(AlfWorld(kinds=["pick_and_place"]).task_ids("train"))[:2] == [0, 6]


def test_a_missing_or_broken_installation_is_reported_with_its_remedy_or_cause(tmp_path: Path) -> None:
    env = AlfWorld(process=AlfWorldProcess(tmp_path / "python"))
    with pytest.raises(UserError, match="run 'make env-alfworld', or use the built-in kitchen") as refused:
        env.reset(0)
    assert "('make play ENV=kitchen'; in params.yaml, env.backend: kitchen)" in str(refused.value)
    process = AlfWorldProcess(tmp_path / "sh")
    (tmp_path / "sh").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "sh").chmod(0o755)
    with pytest.raises(UserError, match=r"does not start \(the process ended with status 3\)"):
        AlfWorld(process=process).reset(0)
    with pytest.raises(UserError, match="ALFWorld does not work"):  # a Python without the packages
        AlfWorldProcess(tmp_path.__class__(sys.executable)).ask("hello")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["juggle"]}, "there is no kind of goal 'juggle'"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"thing": "piano"}, "no game has the requested thing"),
    ],
)
def test_invalid_options_are_user_errors(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        AlfWorld(**options)
    with pytest.raises(UserError, match="there is no split 'test'"):
        AlfWorld().task_ids("test")  # type: ignore[arg-type]


def test_each_action_of_a_plan_is_explained_in_one_line() -> None:
    game = GeneratedGames(0, KINDS, None, None).game(3)
    kitchen = Kitchen()
    kitchen.reset(3)
    said = explained(game, [move.action for move in kitchen.expert()])
    assert len(said) == len(kitchen.expert())
    assert all(text.endswith(".") and "\n" not in text for text in said)
    assert "potato" in said[0]
    assert explained(game, ["use desklamp 1", "slice egg 1 with knife 2", "close fridge 1", "look"][:1])


def test_the_params_select_the_backend(tmp_path: Path) -> None:

    env = listed_env(name="alfworld", backend="textworld").make()
    kitchen = listed_env(name="alfworld").make()
    assert list(env.task_ids()) == list(kitchen.task_ids())
    assert type(env._game).__name__ == "AlfWorld"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="not a folder"):
        listed_env(name="alfworld", backend="textworld", games=str(tmp_path / "missing")).make()
