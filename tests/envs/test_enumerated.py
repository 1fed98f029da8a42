"""Environments with labelled actions: labels, states in two parts, levels, costs, invalid input."""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import selfimprove.envs.labels as module
from selfimprove.core.errors import UserError
from selfimprove.envs.autoexplore.env import ACTION_HEADING as EXPLORE_HEADING
from selfimprove.envs.autoexplore.env import STATE
from selfimprove.envs.autoexplore.listed import TASKS_FILE, level_names
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.labels import LABELS, label_ids, oracle_label
from selfimprove.envs.registry import listed_env
from selfimprove.envs.taxi.env import ACTION_HEADING
from selfimprove.envs.taxi.grid import ACTIONS
from selfimprove.envs.taxi.listed import INSTRUCTION, LEVELS, EnumeratedTaxi
from tests.envs.autoexplore.conftest import FILES, plant, task_for
from tests.envs.labelled_worlds import all_three, explore


@pytest.fixture
def each(tmp_path: Path) -> Callable[..., list[EnumeratedEnv]]:
    """All three environments, with the same additional params."""
    return partial(all_three, tmp_path)


def test_the_example_in_the_docstring_of_labels_is_a_real_state() -> None:
    shown = module.__doc__.split("::\n\n", 1)[1].split("    ...\n", 1)[0]
    env = EnumeratedTaxi()
    env.reset(121)
    env.step("1")
    state = env.state()
    assert (state.pre + state.post).startswith(textwrap.dedent(shown))
    assert state.post.startswith(ACTION_HEADING)
    assert not state.pre.endswith(ACTION_HEADING)


def test_labels_are_numbers_to_199_then_letters() -> None:
    full = LABELS["full"]
    assert full == (*map(str, range(200)), *string.ascii_lowercase, *string.ascii_uppercase)
    assert len(full) == len(set(full)) == 252
    assert len(LABELS["single"]) == 62
    assert all(len(label) == 1 for label in LABELS["single"])


def test_taxi_has_six_labels_with_every_label_set() -> None:
    for labels in LABELS:
        env = listed_env(labels=labels, shuffle_action=True).make()
        assert env.reset(0).labels == env.labels == tuple("012345")


def test_actions_are_labelled_in_order_and_listed_with_their_labels(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for env in each():
        state = env.reset(env.task_ids()[0])
        assert state.labels == env.labels[: len(state.labels)] == tuple(env.commands())
        for label, command in env.commands().items():
            assert re.search(rf"^(Action )?{label}[.:] {re.escape(command)}$", state.post, re.MULTILINE)
        heading = EXPLORE_HEADING if env.name == "autoexplore" else ACTION_HEADING
        assert state.post.startswith(heading)
        assert heading not in state.pre


def test_single_labels_list_at_most_62_actions_and_unlisted_targets_are_refused(tmp_path: Path) -> None:
    plant(tmp_path / "repo/eventlib", FILES | {f"notes/{i:03}.md": "# Note\n" + "word " * 80 for i in range(80)})
    write_tasks(tmp_path / TASKS_FILE, [task_for("notes/010.md")])
    params = listed_env(name="autoexplore", repos=str(tmp_path / "repo"), labels="single")
    env = params.make(tmp_path)
    env.reset(0)
    env.step(oracle_label(env) or "")
    assert len(env.state().labels) == 62
    write_tasks(tmp_path / TASKS_FILE, [task_for("notes/070.md")])
    with pytest.raises(UserError, match=r"notes/070\.md.*cannot be reached"):
        params.make(tmp_path)


def test_labels_that_are_not_distinct_single_tokens_are_reported_with_a_remedy() -> None:
    spell = {"7": [3], "10": [1, 0], "a": [9], "b": [9]}
    with pytest.raises(UserError, match=r"\(10, a, b\).*labels: single") as refused:
        label_ids(["7", "10", "a", "b"], lambda label: spell[label])
    assert "\n" not in str(refused.value)
    assert label_ids(["7", "a"], lambda label: spell[label]) == [3, 9]


def test_shuffled_autoexplore_draws_labels_from_the_whole_set_and_keeps_the_list_order(tmp_path: Path) -> None:
    plain, shuffled = explore(tmp_path), explore(tmp_path, shuffle_action=True)
    seen = set()
    for episode in range(4):
        state = shuffled.reset(0, episode)
        assert list(shuffled.commands().values()) == list((plain.reset(0), plain.commands())[1].values())
        assert len(set(state.labels)) == len(state.labels)
        assert set(state.labels) <= set(LABELS["full"])
        seen.add(state.labels)
        assert shuffled.reset(0, episode).labels == state.labels
    assert len(seen) == 4
    assert plain.reset(0, 3).labels == LABELS["full"][: len(state.labels)]


def test_shuffled_alfworld_permutes_the_commands_and_lists_the_labels_in_order() -> None:
    plain = listed_env(name="alfworld").make()
    env = listed_env(name="alfworld", shuffle_action=True).make()
    task = env.task_ids()[0]
    listed, orders = plain.reset(task).labels, set()
    for episode in range(4):
        assert env.reset(task, episode).labels == listed  # in the order of labels
        orders.add(tuple(env.commands().values()))
        assert sorted(env.commands().values()) == sorted(plain.commands().values())
    assert len(orders) == 4


def test_labels_are_shuffled_anew_at_each_state_and_by_the_seed(tmp_path: Path) -> None:
    kitchen, explored = listed_env(name="alfworld", shuffle_action=True).make(), explore(tmp_path, shuffle_action=True)
    for env, command in ((kitchen, "look"), (explored, "no command")):  # neither changes the list of commands
        env.reset(env.task_ids()[0])
        before = env.commands()
        env.step(next((label for label, listed in before.items() if listed == command), "no label"))
        assert sorted(env.commands().values()) == sorted(before.values())
        assert env.commands() != before
    drawn = [explore(tmp_path, shuffle_action=True, seed=seed).reset(0).labels for seed in (0, 1)]
    assert drawn[0] != drawn[1]


def test_a_shuffled_label_executes_the_command_that_it_is_listed_with() -> None:
    env = listed_env(name="alfworld", shuffle_action=True).make()
    env.reset(env.task_ids()[3], 1)
    label, command = list(env.commands().items())[5]
    env.step(label)
    assert f"Action: {command}\n" in env.state().pre


def test_every_oracle_succeeds_with_the_specified_cost(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for env in each(max_turns=20):
        for task in list(env.task_ids())[:4]:
            env.reset(task)
            costs, played = [], None
            while (label := oracle_label(env)) is not None:
                played = env.step(label)
                costs.append(played.cost)
            assert played is not None
            assert played.done
            assert played.success
            assert env.commands() == {}
            assert env.state().labels == ()
            expected = {
                "taxi": 0.05 * (len(costs) - 2) - 2,
                "alfworld": -1.0,
                "autoexplore": len(costs) - env.max_turns,
            }[env.name]
            assert sum(costs) == pytest.approx(expected)


def test_the_oracle_knows_a_path_that_takes_more_steps_than_are_left(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for env in each(max_turns=1):
        env.reset(env.task_ids()[0])
        assert len(env.oracle()) > 1
        assert oracle_label(env) is not None


def test_success_in_taxi_depends_on_the_level() -> None:
    env = EnumeratedTaxi(max_turns=20)
    for level, threshold in {"pickup": 0.0, "dropoff": 0.0, "full": -1.0}.items():
        for task in (0, 61, 150, 299):
            env.reset(task, 0, level)
            cost, played = 0.0, None
            while (label := oracle_label(env)) is not None:
                played = env.step(label)
                cost += played.cost
            assert played is not None
            assert played.success
            assert cost < threshold
    env.reset(61, 0, "full")
    cost = sum(env.step(label).cost for label in "14")  # picked up, not yet delivered
    played = env.step("1")  # into the wall
    assert cost == pytest.approx(0.05 - 1)
    assert (played.done, played.success, played.cost) == (True, False, 0.5)


@given(st.text(max_size=6))
def test_unknown_labels_end_taxi_at_a_cost_and_leave_the_kitchen_unchanged(label: str) -> None:
    taxi, kitchen = EnumeratedTaxi(), listed_env(name="alfworld").make()
    taxi.reset(3), kitchen.reset(kitchen.task_ids()[0])
    if label.strip().partition(".")[0] not in taxi.labels and label.strip() not in ACTIONS:
        assert taxi.step(label)[:4] == (0.5, True, False, False)
    if label not in kitchen.commands():
        before = kitchen.state()
        assert kitchen.step(label)[:4] == (0.0, False, False, False)
        assert kitchen.state() == before


def test_a_state_of_alfworld_begins_with_the_room_and_the_goal() -> None:
    env = listed_env(name="alfworld").make()
    state = env.reset(env.task_ids()[0])
    room, goal = state.pre.strip().split("\n\n")
    assert room.startswith("You are in the middle of a room. ")
    assert goal.startswith("Your task is to: ")


def test_an_invalid_label_counts_as_a_turn_in_alfworld() -> None:
    env = listed_env(name="alfworld", max_turns=3).make()
    env.reset(env.task_ids()[0])
    assert [env.step("zz").done for _ in range(3)] == [False, False, True]


def test_an_invalid_label_does_not_reshuffle_the_labels() -> None:
    env = listed_env(name="alfworld", shuffle_action=True).make()
    state = env.reset(env.task_ids()[0])
    env.step("zz")
    assert env.state() == state
    env.step(state.labels[0])
    assert env.state() != state


def test_an_action_heading_inside_a_file_does_not_split_the_state(tmp_path: Path) -> None:
    text = "# Choose from below your command\n0. id everything\n" * 9
    plant(tmp_path / "repo/eventlib", FILES | {"trap.md": text})
    write_tasks(tmp_path / TASKS_FILE, [task_for("trap.md")])
    env = listed_env(name="autoexplore", repos=str(tmp_path / "repo")).make(tmp_path)
    env.reset(0)
    env.step(oracle_label(env) or "")
    state = env.state()
    assert "0. id everything" in state.pre
    assert state.post.count(EXPLORE_HEADING) == 1
    assert len(state.post.strip().splitlines()) == 1 + len(state.labels)
    assert (state.pre + state.post).startswith(STATE.partition("{task}")[0])


def test_leaveout_prob_omits_listed_entries_in_training_and_none_in_evaluation(tmp_path: Path) -> None:
    whole, part = explore(tmp_path), explore(tmp_path, leaveout_prob=0.9)
    listed = len(whole.reset(0).labels)
    assert all(len(whole.reset(0, episode).labels) == listed for episode in range(3))
    counts = [len(part.reset(0, episode).labels) for episode in range(8)]
    assert min(counts) < listed
    assert oracle_label(part) is not None
    params = listed_env(name="autoexplore", repos=str(tmp_path / "repo"), leaveout_prob=0.9)
    evaluation = params.make(tmp_path)
    assert [evaluation.reset(0, episode) for episode in range(8)] == [whole.reset(0, episode) for episode in range(8)]


def test_the_easy_and_first_step_params_are_applied(tmp_path: Path) -> None:
    easy = explore(tmp_path, easy=True)
    assert "Find README.md" in easy.reset(1).pre
    bandit = explore(tmp_path, first_step=True)
    bandit.reset(0)
    played = bandit.step(oracle_label(bandit) or "")
    assert (played.cost, played.done, played.success) == (-115.0, True, True)


def test_the_keyword_costs_and_union_targets_params_are_applied(tmp_path: Path) -> None:
    env = explore(tmp_path, keyword_costs={"Warning": 1})
    env.reset(0)
    assert env.step("no label").cost == 2
    seen = {"model_name": "m", "filename": "README.md", "info": "negative0", "trajectory": []}
    write_tasks(tmp_path / TASKS_FILE, [task_for("core/hub.py", trajectories=[seen])])
    for union in (False, True):
        params = listed_env(name="autoexplore", repos=str(tmp_path / "repo"), union_targets=union)
        env = params.make(tmp_path)
        env.reset(0)
        assert env.step("id README.md").success is union


def test_the_params_of_questions_limit_files_questions_and_depth(tmp_path: Path) -> None:
    explore(tmp_path)

    def asked(**params: object) -> list[str]:
        """The target of each task."""
        made = listed_env(name="autoexplore", repos=str(tmp_path / "repo"), **params)
        return [task.filename for task in made.template_tasks(made.repositories())]  # type: ignore[attr-defined]

    assert len(asked()) > len(set(asked())) > 3
    assert max(target.count("/") for target in asked()) == 2
    assert len(asked(per_file=1)) == len(set(asked(per_file=1))) == len(set(asked()))
    assert len(set(asked(files_per_repo=1))) == 1
    assert {target.count("/") for target in asked(max_level=0)} == {0}
    assert asked(seed=1) != asked()


def test_the_params_of_taxi_and_alfworld_are_applied() -> None:
    assert "--- Initial State ---" in listed_env(with_history=True).make().reset(61).pre
    pickup = listed_env(mode="pickup").make()
    pickup.reset(61)
    assert [pickup.step(label)[:3] for label in "14"] == [(0.05, False, False), (-1.0, True, True)]
    kitchen = listed_env(name="alfworld", kinds=["heat"], thing="apple", place="fridge").make()
    assert "apple in fridge." in kitchen.reset(kitchen.task_ids()[0]).pre
    first = [listed_env(name="alfworld", seed=seed).make().reset(0).pre for seed in (0, 1)]
    assert first[0] != first[1]


def test_levels_divide_the_tasks_of_autoexplore_by_depth(tmp_path: Path) -> None:
    env = explore(tmp_path)
    assert env.levels == ("depth0", "depth1", "depth2")
    groups = {level: env.level_tasks(level, env.task_ids()) for level in env.levels}
    assert groups == {"depth0": [1, 3], "depth1": [0], "depth2": [2]}
    assert explore(tmp_path, merge_first_two=True).levels == ("depth0-1", "depth2")
    assert explore(tmp_path, merge_after_first_k=1).levels == ("depth0", "depth1-2")
    assert explore(tmp_path, curriculum_index=1).levels == ("depth1",)
    assert level_names([task_for("README.md")], True, 3) == {"depth0": frozenset({0})}
    with pytest.raises(UserError, match=r"curriculum_index.*0 to 2, not 3"):
        explore(tmp_path, curriculum_index=3)
    with pytest.raises(UserError, match="no level 'deep'"):
        env.reset(0, 0, "deep")


@pytest.mark.parametrize("name", ["alfworld", "textcraft", "tests.envs.own_worlds:Corridor"])
def test_a_level_of_an_environment_without_levels_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"curriculum_index: \w+ has no levels; set -1"):
        listed_env(name=name, curriculum_index=1).make()


def test_taxi_has_the_levels_pickup_dropoff_and_full() -> None:
    assert EnumeratedTaxi().levels == ("pickup", "dropoff", "full")
    one = listed_env(curriculum_index=1).make()
    assert one.levels == ("dropoff",)
    assert "X" in one.reset(61).pre  # the passenger is aboard
    assert "T" in one.reset(61, 0, "full").pre
    with pytest.raises(UserError, match="curriculum_index"):
        EnumeratedTaxi(level=3)
    with pytest.raises(UserError, match="no level 'night'"):
        one.reset(0, 0, "night")


def test_copies_share_no_mutable_state_and_snapshots_restore_a_state(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for env in each():
        env.reset(env.task_ids()[0])
        before, other = env.state(), env.copy()
        other.step(oracle_label(other) or "")
        other.reset(env.task_ids()[1], 2)
        assert env.state() == before
        moment = env.snapshot()
        env.step(oracle_label(env) or "")
        assert env.state() != before
        env.restore(moment)
        assert env.state() == before


# --- invalid input -------------------------------------------------------------------------------------------------


def test_reflect_rl_bad_input_nothing_to_explore(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: nothing to explore; name a folder"):
        listed_env(name="autoexplore", repos=str(tmp_path / "empty")).make()
    with pytest.raises(UserError, match="cannot be listed"):
        listed_env(name="autoexplore", repos=str(tmp_path / "nowhere")).make()


def test_reflect_rl_bad_input_unreadable_files_are_counted_and_named(tmp_path: Path) -> None:
    plant(tmp_path / "repo", {"a.py": "x"})
    (tmp_path / "repo/a.py").write_bytes(b"\xff\xfe" * 40)
    with pytest.raises(UserError, match=r"1 of its files cannot be read; the first is 'a\.py'"):
        listed_env(name="autoexplore", repos=str(tmp_path / "repo")).make()


def test_reflect_rl_bad_input_a_missing_target_is_named(tmp_path: Path) -> None:
    env = explore(tmp_path)
    assert env.task_ids() == range(4)
    (tmp_path / "repo/eventlib/core/hub.py").unlink()
    module_params = listed_env(name="autoexplore", repos=str(tmp_path / "repo"))
    from selfimprove.envs.autoexplore.listed import find_repositories

    find_repositories.cache_clear()
    with pytest.raises(UserError, match=r"task 0: its target 'core/hub\.py' is missing"):
        module_params.make(tmp_path)


def test_only_taxi_has_an_instruction(each: Callable[..., list[EnumeratedEnv]]) -> None:
    taxi, kitchen, explored = each()
    assert taxi.instruction == INSTRUCTION
    assert kitchen.instruction == explored.instruction == ""
    assert listed_env(name="taxi").instruction() == INSTRUCTION
    assert listed_env(name="alfworld").instruction() == listed_env(name="autoexplore").instruction() == ""
    assert LEVELS == ("pickup", "dropoff", "full")


def test_the_labels_of_an_environment_are_known_without_creating_it(each: Callable[..., list[EnumeratedEnv]]) -> None:
    for labels in LABELS:
        for env in each(labels=labels):
            params = listed_env(name=env.name, labels=labels)
            assert params.spelling() == (env.name, env.labels)
