"""DangerousTaxi: Gym's tables, map, danger rule, modes, success, the 300 starts, the expert, and arbitrary text."""

import random
import re
from collections import deque
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selfimprove.envs.taxi.env as module
from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Step
from selfimprove.envs.taxi.env import ACTION_LIST, LABELS, Taxi, history_text, read_action, state_text, succeeded
from selfimprove.envs.taxi.grid import ACTIONS, Place, best_actions, distances, moves, picture, place, starts

SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF = map(str, range(6))
RED, GREEN, YELLOW, BLUE, ABOARD = range(5)


def start(row: int, column: int, passenger: int, destination: int) -> int:
    """The task with this initial state."""
    return starts().index(Place(row, column, passenger, destination).number)


def play(env: Taxi, task: int, *actions: str) -> list[Step]:
    env.reset(task)
    return [env.step(action) for action in actions]


def rewards(steps: list[Step]) -> list[float]:
    return [step.info["raw_reward"] for step in steps]


def map_of(observation: str) -> list[str]:
    return observation.split("--- Current State ---\n\n")[1].split("\n")


def test_the_episode_in_the_module_docstring_is_accurate() -> None:
    text = module.__doc__.split("::\n\n", 1)[1].split("\n\nActions are", 1)[0]
    text = re.sub(r"(?m)^    ", "", text)
    env = Taxi()
    assert text.startswith(env.reset(61) + "\nThought: ")
    turns = re.findall(r"Thought: (.*)\nAction: (.*)\n", text)
    assert [tuple(move) for move in env.expert()] == turns
    last = [env.step(action) for _, action in turns][-1]
    assert text.endswith(turns[-1][1] + "\n" + last.observation)
    assert (last.reward, last.done) == (1, True)


def test_the_observation_is_the_completed_moves_and_the_map_and_the_action_list_is_fixed() -> None:
    env = Taxi()
    assert env.reset(start(1, 0, RED, BLUE)) == (
        "You have already completed the following actions:\n\n\n--- Current State ---\n\n"
        "+---------+\n|P: | : : |\n|T: | : : |\n| : : : : |\n| | : | : |\n| | : |D: |\n+---------+"
    )
    env.step(NORTH)
    assert env.step(PICK_UP).observation == (
        "You have already completed the following actions:\nmove north\npickup passenger\n\n--- Current State ---\n\n"
        "+---------+\n|X: | : : |\n| : | : : |\n| : : : : |\n| | : | : |\n| | : |D: |\n+---------+"
    )
    assert ACTION_LIST == (
        "\nThe actions you can take now is:\nAction 0: move south\nAction 1: move north\nAction 2: move east\n"
        "Action 3: move west\nAction 4: pickup passenger\nAction 5: drop off passenger\n"
    )


@pytest.mark.parametrize(
    ("here", "row", "column", "symbol"),
    [
        (Place(2, 2, RED, BLUE), 2, 2, "T"),
        (Place(2, 2, RED, BLUE), 0, 0, "P"),
        (Place(2, 2, RED, BLUE), 4, 3, "D"),
        (Place(0, 0, RED, BLUE), 0, 0, "O"),  # on the waiting passenger
        (Place(0, 0, ABOARD, BLUE), 0, 0, "X"),
        (Place(4, 3, RED, BLUE), 4, 3, "T"),  # covers the destination
        (Place(4, 3, ABOARD, BLUE), 4, 3, "X"),
        (Place(4, 3, BLUE, BLUE), 4, 3, "O"),  # delivered
        (Place(1, 1, BLUE, BLUE), 4, 3, "P"),
    ],
)
def test_later_symbols_cover_earlier_ones(here: Place, row: int, column: int, symbol: str) -> None:
    rows = picture(here.number).split("\n")
    assert len(rows) == 7
    assert rows[row + 1][2 * column + 1] == symbol


def test_the_destination_is_hidden_under_the_taxi() -> None:
    for cell in product(range(5), range(5)):
        assert ("D" in picture(Place(*cell, RED, BLUE).number)) == (cell != (4, 3))


def test_every_change_of_the_state_is_visible_on_the_map() -> None:
    """The danger rule can therefore compare states, although the original compares texts."""
    for state, row in enumerate(moves()):
        for move in row:
            assert (picture(move.state) == picture(state)) == (move.state == state)


def test_history_shows_the_map_after_every_action() -> None:
    env = Taxi(with_history=True)
    first = env.reset(start(1, 0, RED, BLUE))
    states = [env.snapshot().states[0]]
    assert first == history_text([], states)
    assert first == (
        f"--- Initial State ---\n{picture(states[0])}\n\n\n\nHere is the previous path:\n"
        f"\n\n--- Current State ---\n\n{picture(states[0])}"
    )
    second = env.step(NORTH).observation
    assert second == history_text([int(NORTH)], env.snapshot().states)
    up = picture(Place(0, 0, RED, BLUE).number)
    assert second.endswith(
        f"path:\n--- Step: 0 ---\nAction: move north\nObservation:\n{up}\n\n\n\n--- Current State ---\n\n{up}"
    )


def test_the_history_of_a_dropoff_begins_with_the_state_before_the_oracles_pickup() -> None:
    """As in the original, which keeps the initial picture before it lets the oracle drive."""
    env = Taxi("dropoff", with_history=True)
    shown = env.reset(start(1, 0, RED, BLUE))
    drawn = picture(starts()[start(1, 0, RED, BLUE)])
    assert shown.startswith(f"--- Initial State ---\n{drawn}\n")
    assert shown.endswith(f"--- Current State ---\n\n{picture(env.snapshot().states[0])}")
    assert drawn != picture(env.snapshot().states[0])


@pytest.mark.parametrize(
    ("task", "action"),
    [
        (start(0, 2, RED, BLUE), NORTH),
        (start(4, 2, RED, BLUE), SOUTH),
        (start(2, 4, RED, BLUE), EAST),
        (start(2, 0, RED, BLUE), WEST),
        (start(0, 1, RED, BLUE), EAST),  # an inner wall
        (start(3, 1, RED, BLUE), WEST),
        (start(2, 2, RED, BLUE), PICK_UP),
        (start(4, 0, RED, BLUE), PICK_UP),  # a landmark, but not the passenger's
        (start(2, 2, RED, BLUE), DROP_OFF),
        (start(4, 3, RED, BLUE), DROP_OFF),  # the destination, but no passenger aboard
    ],
)
@pytest.mark.parametrize("mode", ["pickup", "full", "none"])
def test_a_first_action_that_changes_nothing_is_already_danger(mode: Any, task: Any, action: Any) -> None:
    (step,) = play(Taxi(mode), task, action)
    assert step.done
    assert (step.info["raw_reward"], step.info["cost"], step.reward) == (-0.5, 0.5, 0)
    assert step.info["disaster"]
    assert step.info["terminated"]
    assert step.info["valid"]


def test_dropoff_mode_compares_its_first_action_with_the_state_after_the_pickup() -> None:
    (step,) = play(Taxi("dropoff"), start(2, 2, RED, BLUE), NORTH)
    assert step.info["disaster"]
    (step,) = play(Taxi("dropoff"), start(2, 2, RED, BLUE), SOUTH)
    assert not step.done


def test_danger_later_in_an_episode_keeps_the_rewards_earned_before() -> None:
    steps = play(Taxi("full"), start(0, 0, RED, BLUE), PICK_UP, SOUTH, WEST)
    assert rewards(steps) == [1, -0.05, -0.5]
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].info["raw_score"] == pytest.approx(0.45)
    assert map_of(steps[-1].observation) == map_of(steps[-2].observation)


def test_driving_back_and_forth_is_not_danger() -> None:
    steps = play(Taxi("full"), start(2, 2, RED, BLUE), EAST, WEST, EAST, WEST)
    assert rewards(steps) == [-0.05] * 4
    assert not steps[-1].done


def test_text_that_names_no_action_is_invalid_and_counts_as_danger() -> None:
    (step,) = play(Taxi("full"), start(2, 2, RED, BLUE), "fly")
    assert step.info["disaster"]
    assert not step.info["valid"]
    assert step.info["raw_reward"] == -0.5


def test_dropping_off_at_a_wrong_landmark_is_legal_and_the_passenger_waits_there() -> None:
    way = (PICK_UP, SOUTH, SOUTH, SOUTH, SOUTH, DROP_OFF)
    steps = play(Taxi("full"), start(0, 0, RED, BLUE), *way, PICK_UP)
    assert rewards(steps) == [1, -0.05, -0.05, -0.05, -0.05, -0.05, -0.05]  # the second pickup earns nothing
    assert map_of(steps[5].observation)[5][1] == "O"
    assert not steps[-1].done


def test_rewards_and_ends_of_the_modes_follow_the_specification() -> None:
    task, there = start(0, 0, RED, YELLOW), (SOUTH, SOUTH, SOUTH, SOUTH, DROP_OFF)
    pickup = play(Taxi("pickup"), task, PICK_UP)
    assert rewards(pickup) == [1]
    assert pickup[-1].info["truncated"]
    assert not pickup[-1].info["terminated"]
    full = play(Taxi("full"), task, PICK_UP, *there)
    assert rewards(full) == [1, -0.05, -0.05, -0.05, -0.05, 1]
    assert full[-1].info["terminated"]
    none = play(Taxi("none"), task, PICK_UP, *there)
    assert rewards(none) == [-0.05, -0.05, -0.05, -0.05, -0.05, 1]
    dropoff = play(Taxi("dropoff"), task, *there)
    assert rewards(dropoff) == [-0.05, -0.05, -0.05, -0.05, 1]
    for steps in (pickup, full, none, dropoff):
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
        assert [step.reward for step in steps] == [0] * (len(steps) - 1) + [1]


def test_dropoff_mode_starts_with_the_passenger_aboard_and_no_completed_moves() -> None:
    env = Taxi("dropoff")
    for task in env.task_ids():
        first = place(starts()[task])
        observation = env.reset(task)
        assert place(env.snapshot().states[-1]) == (*first.target, ABOARD, first.destination)
        assert observation == state_text([], env.snapshot().states[-1])


def test_max_turns_truncates_an_episode_after_its_last_action() -> None:
    to_and_fro = [EAST, WEST] * 10
    steps = play(Taxi("full"), start(2, 2, RED, BLUE), *to_and_fro[:15])
    assert [step.done for step in steps] == [False] * 14 + [True]
    assert steps[-1].info["truncated"]
    assert not steps[-1].info["terminated"]
    assert steps[-1].reward == 0
    for turns in (1, 3):
        steps = play(Taxi("full", max_turns=turns), start(2, 2, RED, BLUE), *to_and_fro[:turns])
        assert [step.done for step in steps] == [False] * (turns - 1) + [True]


@pytest.mark.parametrize("mode", ["pickup", "dropoff", "full", "none"])
def test_the_score_agrees_with_success_judged_by_cost(mode: Any) -> None:
    """The driver errs occasionally, so both outcomes are frequent."""
    chance, outcomes = random.Random(mode), []
    env = Taxi(mode)
    for episode in range(400):
        env.reset(chance.randrange(300))
        q0, step = 0.0, None
        while step is None or not step.done:
            known = env.oracle()[0]
            step = env.step(str(chance.randrange(6) if chance.random() < (episode % 4) / 10 else known))
            q0 += step.info["cost"]
        assert succeeded(mode, q0, step.info["delivered"]) == (step.reward == 1)
        assert q0 == pytest.approx(-step.info["raw_score"])
        outcomes.append(step.reward)
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.95


def test_without_a_curriculum_success_is_delivery_not_an_unreachable_threshold() -> None:
    assert succeeded("none", -0.3, delivered=True)
    assert not succeeded("none", 0.75, delivered=False)
    assert not succeeded("full", -1.0, delivered=False)
    assert succeeded("full", -1.35, delivered=True)


def test_number_order_and_optimal_lengths_of_the_300_starts() -> None:
    assert len(starts()) == 300
    assert list(starts()) == sorted(starts())
    optima = [distances()[state] for state in starts()]
    assert sum(optima) / 300 == pytest.approx(13.07, abs=1e-9)
    assert max(optima) == 18
    assert sum(optimum <= 15 for optimum in optima) == 242  # 80.7 %
    for state in starts():  # each part on its own always fits
        pickup = len(best_actions(state, until_aboard=True))
        assert pickup <= 15
        assert distances()[state] - pickup <= 15


def test_the_expert_is_a_breadth_first_search_from_any_state() -> None:
    """The original's search on the tables: the first path found, with actions tried in the order of their numbers."""
    for state in starts()[::23]:
        queue, seen, found = deque[Any]([(state, [])]), {state}, None
        while found is None:
            here, way = queue.popleft()
            for action, move in enumerate(moves()[here]):
                if move.delivered:
                    found = [*way, action]
                    break
                if move.state not in seen:
                    seen.add(move.state)
                    queue.append((move.state, [*way, action]))
        assert best_actions(state) == found


@pytest.mark.parametrize("mode", ["pickup", "dropoff", "full", "none"])
def test_the_expert_succeeds_whenever_max_turns_allows_it(mode: Any) -> None:
    env, won = Taxi(mode), 0
    for task in env.task_ids():
        env.reset(task)
        plan, oracle = env.expert(), env.oracle()
        assert [ACTIONS.index(move.action) for move in plan] == (oracle if len(oracle) <= 15 else [])
        steps = [env.step(move.action) for move in plan]
        assert [step.reward for step in steps] == [0] * (len(steps) - 1) + [1] * bool(steps)
        assert not steps or env.expert() == env.oracle() == []
        won += bool(steps)
    assert won == {"full": 242, "none": 242}.get(mode, 300)


def test_the_expert_continues_from_the_middle_of_an_episode_if_enough_actions_are_left() -> None:
    way = ["move west", "move south", "move south", "drop off passenger"]
    for turns, plan in ((8, way), (7, [])):
        env = Taxi("full", max_turns=turns)
        play(env, start(0, 0, RED, YELLOW), PICK_UP, SOUTH, SOUTH, EAST)  # off the shortest path
        assert [move.action for move in env.expert()] == plan


def test_thoughts_are_one_sentence_without_mention_of_an_oracle() -> None:
    seen = set()
    for state in starts():
        while distances()[state] > 1:
            action = best_actions(state)[0]
            text = module.thought(state, action)
            assert re.fullmatch(r"[A-Z][^.\n]*\.", text)
            assert not re.search(r"(?i)optimal|best|spoiler|oracle", text)
            seen.add(re.sub(r"one|two|three|four|rows?|columns?|north|south|east|west|and", "", text))
            state = moves()[state][action].state
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("text", "action"),
    [
        *[(label, int(label)) for label in LABELS],
        *[(words, number) for number, words in enumerate(ACTIONS)],
        (" 3 ", 3),
        ("3.", 3),
        ("3. move west", 3),
        ("3.5", 3),
        (" pickup passenger\n", 4),
        *[(other, None) for other in ("6", "02", "Choice 2", "-1", "²", "٣", "Move south", "pickup", "", ".")],
    ],
)
def test_only_labels_and_action_names_are_read_as_actions(text: str, action: int | None) -> None:
    assert read_action(text) == action


@settings(max_examples=150)
@given(
    st.sampled_from(["pickup", "dropoff", "full", "none"]),
    st.integers(0, 299),
    st.lists(st.one_of(st.text(), st.sampled_from(LABELS), st.sampled_from(ACTIONS)), max_size=20),
)
def test_any_text_gets_a_valid_response(mode: Any, task: int, texts: list[str]) -> None:
    env = Taxi(mode)
    env.reset(task)
    done, earned = False, 0.0
    for text in texts:
        before = env.snapshot()
        step = env.step(text)
        assert isinstance(step.observation, str)
        assert step.reward in (0, 1)
        assert step.done or not done
        assert (step.info["raw_reward"] == 0) == done
        earned += step.info["raw_reward"]
        assert step.info["raw_score"] == pytest.approx(earned)
        if done:
            assert env.snapshot() == before
        done = step.done
        assert env.valid_actions() == ([] if done else list(ACTIONS))


def test_restoring_a_snapshot_reproduces_the_state_in_any_copy_and_leaves_others_unchanged() -> None:
    env, other = Taxi(), Taxi()
    other.reset(5)
    untouched = other.snapshot()
    play(env, start(0, 0, RED, YELLOW), PICK_UP)
    moment = env.snapshot()
    observation = env.observation
    ways = [env.step(action).observation for action in (SOUTH, SOUTH)]
    env.restore(moment)
    assert env.observation == observation
    assert [env.step(action).observation for action in (SOUTH, SOUTH)] == ways
    assert other.snapshot() == untouched
    other.restore(moment)
    assert {other.snapshot()} == {moment}  # equal, also as keys of a set
    assert [other.step(action).observation for action in (SOUTH, SOUTH)] == ways
    assert other.snapshot() == env.snapshot() != moment


def test_state_text_needs_no_environment() -> None:
    assert state_text([0, 4], starts()[0]).split("\n")[1:3] == ["move south", "pickup passenger"]


@pytest.mark.parametrize("task", [-1, 300, 10**9])
def test_an_unknown_start_is_refused_in_one_sentence(task: int) -> None:
    with pytest.raises(UserError, match=r"there is no start .* choose one from 0 to 299\.$"):
        Taxi().reset(task)


def test_invalid_modes_and_max_turns_are_refused() -> None:
    with pytest.raises(UserError, match="there is no mode 'fly'; choose one of pickup, dropoff, full, none"):
        Taxi("fly")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="max_turns must be at least 1, not 0"):
        Taxi(max_turns=0)
