"""ScienceWorld without Java: its games, the scoring of steps, and the mapping of predictions to valid actions."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.sciworld import jvm as sciworld_jvm
from selfimprove.envs.sciworld.actions import ROOMS, candidates, gold_move, map_action
from selfimprove.envs.sciworld.env import INSTRUCTION, SciWorld, outcome
from selfimprove.envs.sciworld.games import (
    EXCLUDED,
    GAMES,
    IDS_OF_NUMBER,
    TASK_NUMBERS,
    TaskVariation,
    game,
    ids_of_task_numbers,
)
from selfimprove.envs.sciworld.jvm import JvmPool
from selfimprove.envs.sciworld.world import SciWorldParams
from tests.support.real_data import real
from tests.support.sentences import refused_with

LOOK = "This room is called the kitchen. In it, you see:\n\tthe agent\n\ta stove\n\tan apple\n\ta cupboard"
CARRIED = "In your inventory, you see:\n\tA Thermometer"
VALID = [
    "open cupboard",
    "look at cupboard",
    "close door to hallway",
    "look at door to hallway",
    "open door to hallway",
    "pick up apple",
    "focus on agent",
    "focus on air",
    "focus on kitchen",
    "focus on apple",
    "focus on thermometer",
    "focus on steam",
]


def mapped(prediction: Any) -> Any:
    return map_action(prediction, candidates(VALID, LOOK, CARRIED), VALID)


def test_there_are_4639_games_in_the_packages_order() -> None:
    assert len(GAMES) == 4639
    assert GAMES[0] == TaskVariation("boil", 0)
    assert GAMES[30] == TaskVariation("melt", 0)
    assert GAMES[4135] == TaskVariation("find-animal", 299)
    assert GAMES[4136] == TaskVariation("chemistry-mix", 0)  # the two excluded plant-growing tasks come between them
    assert GAMES[-1] == TaskVariation("identify-life-stages-2", 9)
    assert len(IDS_OF_NUMBER) == len(TASK_NUMBERS) == 23


def test_the_flat_index_equals_agentgyms() -> None:
    index = json.loads(real("sciworld/game_index.json").read_text())
    assert index["n_games"] == len(GAMES)
    for task in index["tasks"]:
        assert task["excluded"] == (task["task_id"] in EXCLUDED)
        if not task["excluded"]:
            ids = IDS_OF_NUMBER[task["alphabetical_number"]]
            assert (ids[0], ids[-1]) == (task["first_index"], task["last_index"])
            assert [GAMES[i] for i in ids] == [TaskVariation(task["task_name"], v) for v in range(task["variations"])]


@pytest.mark.parametrize("task_id", [-1, 4639])
def test_an_unknown_game_is_reported_with_the_range_of_ids(task_id: int) -> None:
    with pytest.raises(UserError, match=f"no task {task_id}; choose an id from 0 to 4638"):
        game(task_id)


def test_the_loop_selects_the_first_variations_of_every_task_including_the_very_first() -> None:
    ids = ids_of_task_numbers(task_iteration=5)
    assert len(ids) == len(set(ids)) == 23 * 5
    assert ids[:5] == [90, 91, 92, 93, 94]  # task number 1: change-the-state-of-matter-of
    assert ids[-5:] == [0, 1, 2, 3, 4]  # task number 0, boil, is the last
    assert ids_of_task_numbers(1, 3, 2) == [4136, 4137, 4168, 4169]
    assert len(ids_of_task_numbers(task_iteration=12)) == 22 * 12 + 10  # identify-life-stages-2 has ten


def test_task_numbers_are_in_the_originals_order() -> None:
    assert TASK_NUMBERS == (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 18, 19, 20, 21, 22, 25, 26, 27, 28, 29, 0)


def test_a_training_list_selects_the_ids_and_its_errors_are_named() -> None:
    ids = {"1": [100, 99, 98], "2": [4140]}
    assert ids_of_task_numbers(0, 2, 2, ids) == [100, 99, 4140]
    with pytest.raises(UserError, match="no task number 3; add the key '3'"):
        ids_of_task_numbers(0, 3, 2, ids)
    with pytest.raises(UserError, match="no task 4639"):
        ids_of_task_numbers(0, 1, 1, {"1": [4639]})


def test_the_suggested_training_list_is_disjoint_from_the_test_ids() -> None:
    train = json.loads(real("sciworld/sciworld_train_suggested.json").read_text())["ids"]
    rows = json.loads(real("sciworld/sciworld_test.json").read_text())
    test = {int(row["item_id"].removeprefix("sciworld_")) for row in rows}
    ids = ids_of_task_numbers(task_iteration=9, ids=train)
    assert len(ids) == 23 * 9
    assert not set(ids) & test
    assert all(game(i) for i in test)


@pytest.mark.parametrize(
    ("score", "completed", "moves", "reward", "raw", "done"),
    [
        (0.0, False, 3, 0.0, 0, False),
        (0.03333, False, 3, 0.03, 3, False),
        (0.125, False, 3, 0.12, 12, False),  # half to even, as the package rounds
        (0.75, True, 3, 0.75, 75, True),
        (1.0, True, 8, 1.0, 100, True),
        (0.5, False, 100, 0.5, 50, False),
        (0.5, False, 101, 0.5, 50, True),
    ],
)
def test_scores_are_percentages_normalised_to_one(
    score: float, completed: bool, moves: int, reward: float, raw: int, done: bool
) -> None:
    step = outcome("The door is now open.", score, completed, moves)
    assert (step.reward, step.info["raw_score"], step.done) == (reward, raw, done)
    assert step.info["valid"]
    assert not step.info["disaster"]


def test_a_fatal_focus_scores_zero_and_ends_the_episode() -> None:
    step = outcome("You focus on the agent.", -1.0, False, 18)
    assert (step.reward, step.done) == (0.0, True)
    assert step.info["disaster"]
    assert step.info["raw_score"] == -100


@pytest.mark.parametrize("said", ["No known action matches that input.", "Ambiguous request: Please enter the number"])
def test_actions_that_scienceworld_does_not_understand_are_invalid(said: str) -> None:
    assert not outcome(said, 0.0, False, 0).info["valid"]


def test_candidates_exclude_door_and_unsafe_focus_actions_and_include_doors_to_all_rooms() -> None:
    among = candidates(VALID, LOOK, CARRIED)
    assert {f"open door to {room}" for room in ROOMS} <= set(among)
    assert not {"close door to hallway", "look at door to hallway"} & set(among)
    assert [action for action in among if action.startswith("focus")] == ["focus on apple", "focus on thermometer"]
    assert among == sorted(among, key=lambda action: (len(action), action))


@pytest.mark.parametrize(
    ("prediction", "action"),
    [
        ("pick up apple", "pick up apple"),
        (" pick up apple ", "pick up apple"),
        ("pick up the red apple", "pick up apple"),
        ("take the apple!", "pick up apple"),
        ("open the cupboard, now!", "open cupboard"),
        ("go open door to green house", "open door to greenhouse"),
        ("open door to green house", "open door to greenhouse"),
        ("dance wildly", "dance wildly"),
        ("dance, wildly.", "dance, wildly."),
        ("", ""),
        ("focus on the apple", "focus on apple"),
    ],
)
def test_a_prediction_is_mapped_to_the_action_with_the_most_shared_words(prediction: str, action: str) -> None:
    assert mapped(prediction) == action


def test_ties_go_to_the_shorter_then_to_the_alphabetically_first_action() -> None:
    assert map_action("use lamp", ["use lamp on b", "use lamp on a", "use lamp in box"]) == "use lamp on a"
    assert map_action("use lamp", ["use lamp on abc", "use lamp on z"]) == "use lamp on z"


@pytest.mark.parametrize("among", [["pick up cup (containing red)"], ["pick up cup (containing red)", "look around"]])
def test_punctuation_is_stripped_from_a_mapped_action(among: Any) -> None:
    assert map_action("pick up the cup", among) == "pick up cup containing red"
    assert map_action("mix the blue-violet paint", ["mix blue-violet paint"]) == "mix blue-violet paint"


def test_a_prediction_that_looks_is_mapped_like_any_other() -> None:
    assert map_action("examine the apple", ["pick up apple", "focus on apple"]) == "pick up apple"


@pytest.mark.parametrize("prediction", ["close door to hallway", "check on agent", "put apple", "focus on ceiling"])
def test_a_mapping_that_reverses_an_action_or_adds_a_focus_is_refused(prediction: str) -> None:
    """The original opened doors that were to be closed, and focused on things that were not named."""
    among = ["open door to hallway", "focus on apple", "pick up apple"]
    assert map_action(prediction, among) == prediction


@pytest.mark.parametrize(
    ("prediction", "among", "action"),
    [
        ("Focus on apple", ["focus on apple", "go to kitchen"], "focus on apple"),
        ("FOCUS on Apple", ["focus on apple", "go to kitchen"], "focus on apple"),
        ("Close door to hallway", ["open door to hallway"], "Close door to hallway"),
    ],
)
def test_refusal_does_not_depend_on_case(prediction: str, among: Any, action: str) -> None:
    assert map_action(prediction, among) == action


@pytest.mark.parametrize("prediction", ["close door to hallway", "look at door to hallway"])
def test_a_valid_prediction_is_unchanged_even_if_it_is_not_a_candidate(prediction: str) -> None:
    assert prediction in VALID
    assert prediction not in candidates(VALID, LOOK, CARRIED)
    assert mapped(prediction) == prediction


def test_green_house_means_greenhouse_in_a_valid_action_that_is_not_a_candidate() -> None:
    valid = ["close door to greenhouse", "open door to greenhouse"]
    assert map_action("close door to green house", candidates(valid, "", ""), valid) == "close door to greenhouse"


@pytest.mark.parametrize(
    ("prediction", "among"),
    [
        ("inspect on apple", ["focus on apple", "pick up apple"]),
        ("put apple up", ["pick up apple", "look at apple"]),
        ("close door to hallway", ["open door to hallway", "go to hallway"]),
        ("turn off the stove", ["activate stove", "deactivate the other lamp"]),
        ("Switch the stove off", ["activate stove"]),
    ],
)
def test_a_prediction_whose_best_match_is_refused_is_unchanged(prediction: str, among: Any) -> None:
    assert map_action(prediction, among) == prediction


@given(st.text(), st.lists(st.sampled_from(VALID)))
def test_the_mapping_of_any_text_does_not_depend_on_the_order_of_the_valid_actions(prediction: str, among: Any) -> None:
    assert map_action(prediction, among) == map_action(prediction, among[::-1])


@pytest.mark.parametrize(
    ("action", "thought"),
    [
        ("open door to kitchen", "The way to the kitchen leads through this door, so I open it."),
        ("move ice to metal pot", "The ice belongs in the metal pot now."),
        ("examine metal pot", "I want to see how it is with the metal pot."),
        ("wait1", "This takes time, so I let some pass."),
        ("reset task", "The next step is to reset task."),
    ],
)
def test_gold_actions_get_a_thought_that_fits_their_kind(action: str, thought: str) -> None:
    assert gold_move(action) == (thought, action)


def test_the_instruction_names_every_kind_of_action() -> None:
    kinds = "open close activate deactivate connect disconnect use look read move pick pour dunk mix go eat flush focus"
    for word in [*kinds.split(), "wait", "task", "inventory", "number", "Thought:", "Action:"]:
        assert word in INSTRUCTION


def test_without_java_an_error_in_one_sentence_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sciworld_jvm.importlib.util, "find_spec", lambda name: SimpleNamespace(origin="x"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with refused_with(r"no java on the PATH: install Java 8 or newer"):
        SciWorldParams(jvms=1).world()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with refused_with("no java in JAVA_HOME"):
        SciWorldParams(jvms=1).world()


def test_without_the_packages_an_error_in_one_sentence_names_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sciworld_jvm.importlib.util, "find_spec", lambda name: None)
    with refused_with("'make env-sciworld'"):
        SciWorldParams(jvms=1).world()
    env = SciWorld(JvmPool(1))
    assert len(env.task_ids()) == 4639  # splits can be drawn without Java
    with refused_with("scienceworld and py4j not found"):
        env.reset(0)
