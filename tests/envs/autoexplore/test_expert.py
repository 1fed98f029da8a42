"""AutoExplore's expert: its plan, and the reason that it gives for each action."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfimprove.envs.autoexplore.env import AutoExplore
from selfimprove.envs.autoexplore.expert import plan, shared_word
from selfimprove.envs.autoexplore.repos import Repo
from tests.envs.autoexplore.conftest import play


def test_the_expert_succeeds_from_every_state_with_enough_steps_left(make_env: Any, repo: Repo) -> None:
    env = make_env(leaveout_prob=0.5, shuffle_action=True)
    for task in env.task_ids():
        for detour in ([], ["cd core"], ["cd core", "cat hub.py", "cd .."], ["nonsense"] * 11):
            env.reset(task)
            play(env, *detour)
            moves = env.expert()
            steps = [env.step(move.action) for move in moves]
            assert steps[-1].reward == 1.0, (task, detour)
            assert all(move.thought.endswith(".") and "\n" not in move.thought for move in moves)
    env.reset(1)
    assert [move.action for move in env.expert()] == env._tasks[1].optimal_path
    play(env, *["nonsense"] * 12)
    assert [move.action for move in env.expert()] == ["cd core", "cd deep", 'id "wire format.py"']  # no step for cat
    env.step("nonsense")
    assert env.expert() == []  # two steps don't suffice


def test_the_plan_leads_up_and_down_to_the_nearest_target() -> None:
    assert [a.text for a in plan("a/b", ["a/c/x y.py"], ["a/c/x y.py"], 15)] == ["cd ..", "cd c", 'id "x y.py"']
    assert [a.text for a in plan("a", ["z.py", "a/q.py"], [], 15)] == ["cat q.py", "id q.py"]
    assert plan("", [], [], 15) == []


def test_thoughts_use_the_word_that_question_and_name_share(
    make_folder: Callable[[str, dict[str, str]], Path], make_task: Any
) -> None:
    repo = Repo.open(make_folder("r", {"core/subscribe/event_hub.py": "class Hub:\n    pass\n"}))
    question = "Which class forwards events to subscribers?"
    tasks = [make_task("core/subscribe/event_hub.py", question, root="r")] * 10
    env, thoughts = AutoExplore(tasks, {"r": repo}), set()
    for task in env.task_ids():
        env.reset(task)
        told = [move.thought for move in env.expert()]
        assert [re.findall(r"\b(events|subscribers)\b", thought) for thought in told] == [
            [], ["subscribers"], ["events"], [],
        ]  # fmt: skip
        thoughts.update(told)
    assert len(thoughts) > 8  # in several wordings


def test_the_shared_word_is_the_first_word_of_the_question_that_also_occurs_in_the_name() -> None:
    assert shared_word("Which class forwards events to subscribers?", "event_hub.py") == "events"
    assert shared_word("Where is OverridesParser?", "override_parser") == "Overrides"
    assert shared_word("Where is it?", "hub.py") == ""
