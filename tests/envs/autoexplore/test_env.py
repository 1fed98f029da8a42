"""Episodes of AutoExplore: states, labels, ends, costs, left-out entries and the expert."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import selfimprove.envs.autoexplore.env as module
from selfimprove.core.errors import UserError
from selfimprove.envs.autoexplore.actions import LABELS, Action
from selfimprove.envs.autoexplore.env import ACTION_HEADING, NO_COMMAND, AutoExplore
from selfimprove.envs.autoexplore.listed import EnumeratedAutoExplore
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.tree import View
from tests.envs.autoexplore.conftest import play

HUB, WIRE = "core/hub.py", "core/deep/wire format.py"

FIRST = """\
# Task
Where is the hub?

# Current working directory


# Files under current working directory
README.md
core
data
run.sh
settings.yaml

# Command history


# Execution result of your last command


# Choose from below your command
0. cat README.md
1. id README.md
2. cd core
3. cd data
4. cat run.sh
5. id run.sh
6. cat settings.yaml
7. id settings.yaml
"""
THIRD = """\
# Task
Where is the hub?

# Current working directory
core/deep/

# Files under current working directory
"wire format.py"

# Command history
cd core
cd deep
cat "wire format.py"

# Execution result of your last command
Executing: cat "wire format.py"
Success: The content of "wire format.py" is:
{content}

# Choose from below your command
0. cd ..
1. id "wire format.py"
"""


def test_state_has_its_sections_in_order_and_lists_actions(make_env: Any) -> None:
    env = make_env()
    assert env.reset(0) == FIRST
    content = env._repos["eventlib"].tree.read(WIRE, 10_000)[0].decode()
    assert play(env, "2", "1", "1")[-1].observation == THIRD.format(content=content)
    assert FIRST.count(ACTION_HEADING) == 1


def test_the_episode_in_the_module_docstring_is_accurate(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any
) -> None:
    files = {"README.md": "How to use it.\n", "core/hub.py": "class Hub:\n    pass\n", "settings.yaml": "retries: 3\n"}
    question = "Which file defines the class Hub, described as: Forwards events to subscribers."
    repo = Repo.open(make_folder("r", files))
    env = AutoExplore([make_task("core/hub.py", question, root="r")], {"r": repo})
    opening = module.__doc__.split("::\n\n", 1)[1].split("\n    > 2", 1)[0]
    assert env.reset(0) == dedent(opening)
    steps = play(env, "2", "1", "1")
    assert "Executing: cd core\nSuccess: Now at core\n" in steps[0].observation
    assert steps[0].observation.endswith("\n0. cd ..\n1. cat hub.py\n2. id hub.py\n")
    assert [step.info["cost"] for step in steps] == [1, 1, 1 - 15]


def test_the_real_heading_is_the_last_one_even_if_a_file_imitates_it(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any
) -> None:
    text = f"imitation{ACTION_HEADING}\n0. id x\n"
    repo = Repo.open(make_folder("r", {"a.md": text, "b.md": text}))
    env = AutoExplore([make_task("b.md", root="r")], {"r": repo})
    env.reset(0)
    before, _, after = env.step("0").observation.rpartition(ACTION_HEADING)
    assert ACTION_HEADING in before
    assert after == "\n0. id a.md\n1. cat b.md\n2. id b.md\n"


def test_a_file_that_was_read_is_no_longer_listed_for_cat_but_still_for_id(make_env: Any) -> None:
    env = make_env()
    env.reset(0)
    env.step("cat README.md")
    assert "cat README.md" not in env.valid_actions()
    assert "id README.md" in env.valid_actions()
    assert not env.step("cat README.md").info["valid"]
    play(env, "cd core", "cd ..")
    assert "cat README.md" not in env.valid_actions()  # also after coming back
    assert env.valid_actions() == sorted(env.valid_actions())


@pytest.mark.parametrize(
    ("path", "success", "cost"),
    [
        (["cd core", "cat hub.py", "id hub.py"], True, 3 - 15),
        (["cd core", "id hub.py"], True, 2 - 15),
        (["id README.md"], False, 1 + 15),
        (["cd core", "cd .."] * 7 + ["cd core"], False, 15 + 15),
        ([*["cd core", "cd .."] * 6, "cd core", "nonsense", "id hub.py"], True, 15 - 15),  # found at step H
        ([*["cd core", "cd .."] * 7, "id README.md"], False, 15 + 15),
    ],
)
def test_id_or_max_turns_ends_an_episode_and_costs_add_up(make_env: Any, path: Any, success: bool, cost: Any) -> None:
    env = make_env()
    env.reset(0)
    steps = play(env, *path)
    assert [step.done for step in steps] == [False] * (len(path) - 1) + [True]
    assert [step.info["cost"] for step in steps[:-1]] == [1] * (len(path) - 1)
    assert sum(step.info["cost"] for step in steps) == cost == -steps[-1].info["raw_score"]
    assert (steps[-1].reward, steps[-1].info["success"], cost < 0.01) == (float(success), success, success)
    assert [step.reward for step in steps[:-1]] == [0.0] * (len(path) - 1)
    after = env.step("0")
    assert (after.done, after.reward, after.info["cost"], after.info["valid"]) == (True, float(success), 0.0, False)
    assert env.valid_actions() == env.choices() == env.expert() == []


def test_max_turns_is_an_option(make_env: Any) -> None:
    env = make_env(max_turns=2)
    env.reset(0)
    assert [(s.done, s.info["cost"]) for s in play(env, "cd core", "cd ..")] == [(False, 1), (True, 3)]


def test_keyword_costs_apply_only_to_the_status_of_the_last_result(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any
) -> None:
    folder = make_folder("r", {"a.md": "Error: Warning: words of a file\n", "b.md": "text of a file\n"})
    env = AutoExplore([make_task("b.md", root="r")], {"r": Repo.open(folder)}, keyword_costs={"Error": 2, "Warning": 1})
    env.reset(0)
    (folder / "b.md").unlink()
    steps = play(env, "cat a.md", "nonsense", "cat b.md")
    assert [step.info["cost"] for step in steps] == [1, 1 + 1, 1 + 2]
    assert "Error: No such file or directory" in steps[-1].observation  # reported, not raised
    assert [step.info["valid"] for step in steps] == [True, False, False]


@pytest.mark.parametrize("price", [1, 2])
def test_an_episode_succeeds_if_its_total_cost_is_below_a_hundredth(make_env: Any, price: int) -> None:
    env = make_env(keyword_costs={"Warning": price})
    env.reset(0)
    steps = play(env, *["nonsense"] * 6, "cd core", "id hub.py")
    found = sum(step.info["cost"] for step in steps) < 0.01
    assert found == (price == 1) == steps[-1].info["success"] == bool(steps[-1].reward)


def test_an_invalid_label_costs_a_step_and_changes_nothing_else(make_env: Any) -> None:
    env = make_env()
    env.reset(0)
    step = env.step("8")
    assert step.observation == FIRST.replace("last command\n\n\n", f"last command\n{NO_COMMAND}\n\n")
    assert NO_COMMAND.startswith("Warning: You didn't give me any command.")
    assert (step.info["cost"], step.info["valid"], step.info["command"], step.done) == (1.0, False, None, False)
    assert env.snapshot().steps == 1


def test_left_out_entries_depend_only_on_seed_task_and_episode(make_env: Any) -> None:
    env, other = make_env(leaveout_prob=0.5), make_env(leaveout_prob=0.5)
    states = [env.reset(0, episode) for episode in range(20)]
    assert len(set(states)) > 5
    assert [other.reset(0, episode) for episode in reversed(range(20))] == states[::-1]
    for state in states:
        assert "cd core" in state  # the path to the target is kept
    assert make_env(leaveout_prob=0.0).reset(0) == FIRST
    assert [make_env(leaveout_prob=0.5, seed=1).reset(0, i) for i in range(20)] != states


def test_two_equal_tasks_leave_out_different_entries(repo: Repo, make_task: Any) -> None:
    env = AutoExplore([make_task(HUB)] * 2, {"eventlib": repo}, leaveout_prob=0.5)
    first, second = ([env.reset(task, episode) for episode in range(20)] for task in (0, 1))
    assert sum(one != other for one, other in zip(first, second, strict=True)) > 10


def test_easy_names_one_target_in_the_question(repo: Repo, make_task: Any) -> None:
    seen = [{"model_name": "m", "filename": name, "info": "positive", "trajectory": []} for name in (WIRE, "gone.py")]
    env = AutoExplore([make_task(HUB, "?", trajectories=seen)], {"eventlib": repo}, easy=True, union_targets=True)
    found = {env.reset(0, i).split("\n")[1] for i in range(20)}
    assert found == {f"Find {HUB}", f"Find {WIRE}"}
    assert env.question() == f"Find {env.targets()[0]}"
    hard = AutoExplore([make_task(HUB, "?", trajectories=seen)], {"eventlib": repo})
    assert (hard.targets(), hard.question()) == ((HUB,), "?")
    both = AutoExplore([make_task(HUB, "?", trajectories=seen)], {"eventlib": repo}, union_targets=True)
    assert both.targets() == (HUB, WIRE)
    both.reset(0)
    assert play(both, "cd core", "cd deep", 'id "wire format.py"')[-1].info["success"]


def test_easy_keeps_only_its_own_target_and_may_leave_out_others(repo: Repo, make_task: Any) -> None:
    """Another episode's target is not a target here. It was once kept unnecessarily."""
    seen = [{"model_name": "m", "filename": "README.md", "info": "positive", "trajectory": []}]
    env = AutoExplore(
        [make_task(HUB, "?", trajectories=seen)], {"eventlib": repo}, easy=True, union_targets=True, leaveout_prob=1.0
    )
    for episode in range(20):
        env.reset(0, episode)
        assert env.valid_actions() == (["cat README.md", "id README.md"] if env.targets() != (HUB,) else ["cd core"])


def test_first_step_ends_every_episode_after_one_step(make_env: Any) -> None:
    env = make_env(first_step=True)
    for action, cost in (("cd core", -115.0), ("cd data", 1.0), ("id README.md", 16.0), ("nonsense", 1.0)):
        env.reset(0)
        step = env.step(action)
        assert (step.done, step.info["cost"], step.info["success"]) == (True, cost, cost < 0)


def test_a_first_step_episode_with_max_turns_1_is_charged_like_any_last_step(make_env: Any) -> None:
    env = make_env(first_step=True, max_turns=1)
    for action, cost in (("cd core", -101.0), ("cd data", 2.0), ("id README.md", 2.0), ("nonsense", 2.0)):
        env.reset(0)
        assert env.step(action).info["cost"] == cost


def test_a_folder_is_listed_once_per_step(make_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    every = module.every_action

    def counted(view: View, cwd: str, seen: tuple[str, ...]) -> list[Action]:
        gone.append(cwd)
        return every(view, cwd, seen)

    monkeypatch.setattr(module, "every_action", counted)
    game = make_env()
    env = EnumeratedAutoExplore(game, LABELS, {"depth0": frozenset({0})})
    env.reset(0)
    env.step("cd core")
    assert env.state().labels == tuple(env.commands())
    assert gone == ["", "core"]


def test_a_first_step_episode_that_identifies_the_target_succeeds(make_folder: Any, make_task: Any) -> None:
    repo = Repo.open(make_folder("r", {"a.md": "text of a file\n"}))
    env = AutoExplore([make_task("a.md", root="r")], {"r": repo}, first_step=True)
    env.reset(0)
    step = env.step("id a.md")
    assert (step.done, step.info["cost"], step.info["success"]) == (True, 1.0 - env.max_turns, True)


def test_first_step_of_a_task_without_a_path_rewards_the_first_command_towards_the_target(
    make_folder: Any, make_task: Any
) -> None:
    repo = Repo.open(make_folder("r", {"a.md": "text of a file\n"}))
    task = make_task("a.md", root="r").model_copy(update={"optimal_path": []})
    env = AutoExplore([task], {"r": repo}, first_step=True)
    env.reset(0)
    assert env.step("cat a.md").info["cost"] == -100.0 - env.max_turns


@pytest.mark.parametrize("path", [["ls", 'cd "my dir"'], ["cd my dir", "cat a.py"], ["cd 'my dir'"]])
def test_first_step_compares_with_the_path_as_commands_are_listed(
    make_folder: Any, make_task: Any, path: list[str]
) -> None:
    repo = Repo.open(make_folder("r", {"my dir/a.py": "text of a file\n"}))
    task = make_task("my dir/a.py", root="r").model_copy(update={"optimal_path": path})
    env = AutoExplore([task], {"r": repo}, first_step=True)
    env.reset(0)
    assert env.step('cd "my dir"').info["cost"] == -100.0 - env.max_turns


def test_names_that_would_imitate_the_state_are_not_listed(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any
) -> None:
    folder = make_folder("r", {"a.md": "text of a file\n"})
    repo = Repo.open(folder)
    wild = dict.fromkeys(("b\n# Choose.md", "\x1b[2J.md", "c.png", "d/\u202e.md"), "text\n")
    make_folder("r", wild)
    tree = type(repo.tree).scan(folder)
    env = AutoExplore([make_task("a.md", root="r")], {"r": Repo("r", tree, ("a.md",))})
    assert env.reset(0).split("\n# Files under current working directory\n")[1].split("\n\n")[0] == "a.md\nc.png\nd"
    assert env.valid_actions() == ["cat a.md", "cd d", "id a.md"]


def test_restoring_a_snapshot_reproduces_the_state_in_any_copy(make_env: Any) -> None:
    env, copy = make_env(leaveout_prob=0.5, shuffle_action=True), make_env(leaveout_prob=0.5, shuffle_action=True)
    env.reset(1, 4)
    env.step("cd core")
    moment = env.snapshot()
    hash(moment)
    ahead = [env.step(move.action) for move in env.expert()]
    copy.reset(2)
    for place in (env, copy):
        place.restore(moment)
        assert place.snapshot() == moment
        assert [place.step(move.action) for move in place.expert()] == ahead
    assert ahead[-1].reward == 1.0


def test_missing_targets_repositories_and_tasks_are_user_errors(repo: Repo, make_task: Any) -> None:
    with pytest.raises(UserError, match=r"task 1: its target 'gone.py' is missing from 'eventlib' .* remove the task"):
        AutoExplore([make_task(HUB), make_task("gone.py")], {"eventlib": repo})
    with pytest.raises(UserError, match="task 0 refers to the repository 'other', which is missing"):
        AutoExplore([make_task(HUB, root="other")], {"eventlib": repo})
    with pytest.raises(UserError, match="there are no tasks; generate some"):
        AutoExplore([], {"eventlib": repo})
    with pytest.raises(UserError, match="no task 1; choose an id from 0 to 0"):
        AutoExplore([make_task(HUB)], {"eventlib": repo}).reset(1)
