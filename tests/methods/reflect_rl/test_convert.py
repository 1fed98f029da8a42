"""The five supervised sets: steps, prompts and training targets; and the texts that the tokenizer is trained on."""

from __future__ import annotations

import asyncio

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import State
from selfimprove.envs.registry import listed_env
from selfimprove.envs.taxi.env import ACTION_LIST
from selfimprove.methods.reflect_rl.convert import convert, metrics, texts
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory, TeachingTask, teach
from selfimprove.methods.reflect_rl.params import DATA_SETS, GenerateParams
from selfimprove.methods.reflect_rl.prompts import MARKERS, policy_prompt, reflection_prompt
from selfimprove.methods.reflect_rl.teacher import ScriptedTeacher

SPACED = MARKERS["spaced"]
ENV = listed_env(max_turns=20).make()


@pytest.fixture(scope="module")
def made() -> list[TeacherTrajectory]:
    """A complete trajectory and two exploring ones."""
    asked = [TeachingTask(task_id=9), TeachingTask(task_id=9, negative=0), TeachingTask(task_id=10, negative=1)]
    found = [asyncio.run(teach(job, ENV, ScriptedTeacher(), GenerateParams(), seed=1)) for job in asked]
    return [one for one in found if one is not None]


def test_policies_learn_only_demonstrated_tasks_and_reflection_models_learn_all(made: list[TeacherTrajectory]) -> None:
    every, sets = convert(made, ENV.instruction, SPACED), convert(made, ENV.instruction, SPACED, [9])
    for name in DATA_SETS:
        asked = made if "reflection" in name else made[:2]
        assert sets[name] == [one for one in every[name] if one.source in [trajectory.id for trajectory in asked]]
    assert len(sets["sft_policy"]) < len(every["sft_policy"])
    only_ten = convert(made[2:], ENV.instruction, SPACED, [10])
    assert only_ten["sft"]
    assert not only_ten["sft_policy_positive"]
    with pytest.raises(UserError, match=r"tasks\.demonstrations"):
        convert(made, ENV.instruction, SPACED, [11])


def test_the_five_sets_contain_all_steps_or_all_steps_of_positives(made: list[TeacherTrajectory]) -> None:
    sets = convert(made, ENV.instruction, SPACED)
    assert tuple(sets) == DATA_SETS
    steps = [step for one in made for step in one.steps]
    whole = list(made[0].steps)
    assert len(sets["sft"]) == len(sets["sft_reflection"]) == len(sets["sft_policy"]) == len(steps)
    assert len(sets["sft_reflection_positive"]) == len(sets["sft_policy_positive"]) == len(whole) < len(steps)
    assert sets["sft_policy_positive"] == sets["sft_policy"][: len(whole)]


def test_each_set_has_the_prompts_of_rollouts_and_trains_on_the_answer(made: list[TeacherTrajectory]) -> None:
    sets = convert(made, ENV.instruction, SPACED)
    steps = [step for one in made for step in one.steps]
    for number, step in enumerate(steps):
        state = State(step.pre, step.post, tuple(step.labels))
        asked = {
            "sft": (policy_prompt(ENV.instruction, state, None), step.label),
            "sft_reflection": (reflection_prompt(ENV.instruction, state), step.reflection),
            "sft_policy": (policy_prompt(ENV.instruction, state, step.reflection), step.label),
        }
        for name, (prompt, answer) in asked.items():
            *given, said = sets[name][number].messages  # type: ignore[index]
            assert given == prompt
            assert (said.role, said.content, said.weight) == ("assistant", answer, 1)


def test_failed_trajectories_are_not_trained_on(made: list[TeacherTrajectory]) -> None:
    failed = made[0].model_copy(update={"status": "unsolved"})
    with pytest.raises(UserError, match=r"no trajectory has a step to train on; raise "):
        convert([failed], ENV.instruction, SPACED)
    sets = convert([failed, *made], ENV.instruction, SPACED)
    assert sets == convert(made, ENV.instruction, SPACED)


def test_negatives_alone_fill_only_the_three_sets_that_need_no_success(made: list[TeacherTrajectory]) -> None:
    sets = convert([one for one in made if one.info != "positive"], ENV.instruction, SPACED)
    assert all(sets[name] for name in ("sft", "sft_reflection", "sft_policy"))
    assert sets["sft_reflection_positive"] == sets["sft_policy_positive"] == []


def test_constant_parts_of_prompts_are_marked_as_fixed(made: list[TeacherTrajectory]) -> None:
    sets = convert(made, ENV.instruction, SPACED)
    rows = texts(sets, made, ENV.instruction, SPACED)
    fixed = [row["text"] for row in rows if row.get("fixed")]
    assert fixed == [ENV.instruction, " # Analyze:\n", " # Action:\n", ACTION_LIST]
    assert not any(ENV.instruction in row["text"] for row in rows if not row.get("fixed"))
    counts = metrics(made, sets)
    assert (counts["positives"], counts["positives_solved"], counts["negatives"]) == (1, 1, 2)
    assert counts["examples"]["sft"] == len(sets["sft"])


def test_action_lists_that_vary_are_training_text_of_the_tokenizer() -> None:
    env = listed_env(name="alfworld").make()
    (one,) = [
        asyncio.run(teach(TeachingTask(task_id=env.task_ids()[0]), env, ScriptedTeacher(), GenerateParams(), seed=1))
    ]
    assert one is not None
    sets = convert([one], "", SPACED)
    rows = texts(sets, [one], "", SPACED)
    assert [row["text"] for row in rows if row.get("fixed")] == [" # Analyze:\n", " # Action:\n"]
    assert any("Action 3: " in row["text"] for row in rows)
