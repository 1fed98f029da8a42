"""The teacher's trajectories: positives, wrong files, exploring episodes; both kinds of teachers; no leaked secrets."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from selfimprove.core.journal import Journal
from selfimprove.engines.base import Completion, Engine, EngineError, Request
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.interface import EnumeratedEnv, Last
from selfimprove.envs.registry import listed_env
from selfimprove.envs.taxi.grid import ACTIONS
from selfimprove.methods.reflect_rl.convert import convert, metrics
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory, TeachingTask, teach, teaching_tasks
from selfimprove.methods.reflect_rl.params import GenerateParams
from selfimprove.methods.reflect_rl.prompts import MARKERS
from selfimprove.methods.reflect_rl.teacher import (
    ANALYZE,
    ANALYZE_FIRST,
    ANALYZE_LATER,
    CHOOSE,
    SPOILER,
    WRONG,
    ChatTeacher,
    ScriptedTeacher,
    Teacher,
    analysis_request,
)
from tests.envs.autoexplore.conftest import FILES, plant, task_for

CFG = GenerateParams(max_turns=20)
OTHERS = {"core/bus.py": "# A bus that nobody takes.\n" * 20, "core/log.py": "# What was logged.\n" * 20}


def taxi() -> EnumeratedEnv:
    return listed_env(max_turns=20).make()


@pytest.fixture
def explore(tmp_path: Path) -> EnumeratedEnv:
    plant(tmp_path / "repo/eventlib", FILES | OTHERS)
    write_tasks(tmp_path / TASKS_FILE, [task_for("core/hub.py"), task_for("core/deep/wire format.py")])
    return listed_env(name="autoexplore", repos=str(tmp_path / "repo")).make(tmp_path)


def made(
    job: TeachingTask, env: EnumeratedEnv, teacher: Teacher | None = None, cfg: GenerateParams = CFG
) -> TeacherTrajectory:
    found = asyncio.run(teach(job, env, teacher or ScriptedTeacher(), cfg, seed=3))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["taxi", "alfworld"])
def test_a_complete_trajectory_reflects_at_every_step_and_solves_the_task(name: str) -> None:
    env = listed_env(name=name, max_turns=20).make()
    one = made(TeachingTask(task_id=env.task_ids()[5]), env)
    assert (one.info, one.status) == ("positive", "solved")
    assert all(step.reflection and step.learn and step.done is None for step in one.steps)
    env.reset(one.task_id)
    for step in one.steps:
        state = env.state()
        assert (step.pre, step.post, tuple(step.labels)) == state
        assert env.commands()[step.label] == step.command
        played = env.step(step.label)
    assert played.success


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_a_scripted_teacher_takes_wrong_actions_at_its_error_rate(rate: float) -> None:
    env, wrong, acted = taxi(), 0, 0
    for task in range(40):
        one = made(TeachingTask(task_id=task), env, ScriptedTeacher(rate))
        env.reset(task)
        for step in one.steps:
            wrong, acted = wrong + (step.command != env.oracle()[0]), acted + 1
            env.step(step.label)
    assert wrong / acted == pytest.approx(rate, abs=0.1)


def test_a_negative_replays_errs_and_is_trained_only_on_the_correction(explore: EnumeratedEnv) -> None:
    one = made(TeachingTask(task_id=0, negative=0), explore)
    assert [step.command for step in one.steps] == ["cd core", "cat hub.py", "cat hub.py"]
    assert [step.reflection for step in one.steps[:2]] == ["", ""]
    assert [step.learn for step in one.steps] == [False, False, True]
    wrong, corrected = one.steps[1].done, one.steps[2]
    assert wrong in ("cat bus.py", "cat log.py")
    assert wrong.removeprefix("cat ") in corrected.reflection  # why it was wrong
    assert f"Executing: {wrong}" in corrected.pre
    sets = convert([one, made(TeachingTask(task_id=0), explore)], "", MARKERS["spaced"])
    texts = [message.content for examples in sets.values() for one in examples for message in one.messages]
    answers = [message.content for one in sets["sft"] for message in one.messages if message.role == "assistant"]
    assert len(answers) == 1 + 3
    assert texts


def test_negatives_of_a_task_are_distinct_and_limited_by_the_number_of_wrong_files(explore: EnumeratedEnv) -> None:
    found = [
        asyncio.run(teach(TeachingTask(task_id=0, negative=k), explore, ScriptedTeacher(), CFG, seed=3))
        for k in range(3)
    ]
    assert found[2] is None  # only two other files are listed there
    assert {one.steps[1].done for one in found[:2]} == {"cat bus.py", "cat log.py"}  # type: ignore[union-attr]
    assert asyncio.run(teach(TeachingTask(task_id=1, negative=0), explore, ScriptedTeacher(), CFG, seed=3)) is None


def test_an_episode_that_ends_with_the_wrong_file_gives_no_negative(tmp_path: Path) -> None:
    plant(tmp_path / "repo/eventlib", FILES)
    write_tasks(tmp_path / TASKS_FILE, [task_for("README.md")])
    bandit = listed_env(name="autoexplore", repos=str(tmp_path / "repo"), first_step=True).make(tmp_path)
    assert asyncio.run(teach(TeachingTask(task_id=0, negative=0), bandit, ScriptedTeacher(), CFG, seed=3)) is None


def test_exploring_episodes_act_at_random_and_train_on_the_oracles_action() -> None:
    env, steps, wrong = taxi(), 0, 0
    for task in range(60):
        one = made(TeachingTask(task_id=task, negative=0), env)
        env.reset(task)
        for step in one.steps:
            assert step.command == env.oracle()[0]
            steps, wrong = steps + 1, wrong + (step.done is not None)
            label = next(label for label, words in env.commands().items() if words == (step.done or step.command))
            last = env.step(label)
        assert last.done or len(one.steps) == 20  # danger ends it, as in any episode
    share = 1 - wrong / steps
    assert 0.1 < share < 0.5  # probability 0.1, plus one sixth of the rest


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_the_oracle_acts_with_probability_oracle_prob(probability: float) -> None:
    """The other actions are uniform over the six, the oracle's included; four standard deviations are allowed."""
    cfg, env = GenerateParams(oracle_prob=probability, max_turns=20), taxi()
    some = [made(TeachingTask(task_id=task, negative=0), env, cfg=cfg) for task in range(60)]
    steps = [step for one in some for step in one.steps]
    share = probability + (1 - probability) / len(ACTIONS)
    agreed = sum(step.done is None for step in steps)
    assert len(steps) > 60
    assert abs(agreed - share * len(steps)) <= 4 * math.sqrt(len(steps) * share * (1 - share))


@pytest.mark.parametrize("negative", [None, 0])
def test_the_cost_of_a_trajectory_is_the_sum_over_all_actions_taken(negative: int | None) -> None:
    env = taxi()
    for task in range(5):
        one, costs = made(TeachingTask(task_id=task, negative=negative), env), []
        env.reset(task)
        for step in one.steps:
            label = next(label for label, words in env.commands().items() if words == (step.done or step.command))
            costs.append(env.step(label).cost)
        assert all(costs)
        assert one.cost == pytest.approx(sum(costs))


def test_episodes_of_the_teacher_cycle_through_the_levels() -> None:
    cfg = GenerateParams(tasks=2, negative_tasks=2, negatives=2, levels=["full", "dropoff"])
    asked = teaching_tasks([7, 8, 9], cfg)
    assert [(job.task_id, job.info, job.level) for job in asked] == [
        (7, "positive", "full"),
        (8, "positive", "dropoff"),
        (7, "negative0", "full"),
        (7, "negative1", "dropoff"),
        (8, "negative0", "full"),
        (8, "negative1", "dropoff"),
    ]
    aboard = made(asked[3], taxi())
    assert "X" in aboard.steps[0].pre


def test_a_reflection_that_was_cut_is_counted_and_has_no_end_token_to_learn() -> None:
    async def cut(request: Request) -> list[Completion]:
        text = "0" if CHOOSE in request.messages[-1].content else "The passenger waits in"
        return [Completion(text, "stop" if text == "0" else "length")]

    engine = ScriptedEngine(lambda request, index: "")
    engine.generate = cut  # type: ignore[method-assign]
    one = made(TeachingTask(task_id=61, negative=0), taxi(), ChatTeacher(engine, "brief", CFG))
    sets = convert([one], "", MARKERS["spaced"])
    assert {example.messages[-1].finish for example in sets["sft_reflection"]} == {"length"}
    assert {example.messages[-1].finish for example in sets["sft_policy"]} == {None}
    assert metrics([one], sets)["cut_reflections"] == len(one.steps) > 0


def test_negatives_without_a_correction_are_counted(explore: EnumeratedEnv) -> None:
    def silent(request: Request, index: int) -> str:
        return "nothing" if CHOOSE in request.messages[-1].content else "That file was the wrong one."

    teacher = ChatTeacher(ScriptedEngine(silent), "silent", CFG)
    found = [
        made(TeachingTask(task_id=0, negative=0), explore, teacher), made(TeachingTask(task_id=0, negative=0), explore),
    ]  # fmt: skip
    assert [one.status for one in found] == ["unsolved", "solved"]
    assert metrics(found, convert(found, "", MARKERS["spaced"]))["negatives_unsolved"] == 1
    mute = ChatTeacher(ScriptedEngine(lambda request, index: ""), "mute", CFG)
    assert made(TeachingTask(task_id=0, negative=0), explore, mute).told == 1


def test_no_secret_is_in_the_training_data() -> None:
    env = taxi()
    teacher = ChatTeacher(ScriptedEngine(_telltale), "telltale", CFG)
    for who in (ScriptedTeacher(), teacher):
        found = [made(TeachingTask(task_id=task, negative=0), env, who) for task in range(25)]
        found += [made(TeachingTask(task_id=task), env, ScriptedTeacher()) for task in range(3)]
        assert any(one.told for one in found) == (who is teacher)
        assert all(step.reflection for one in found for step in one.steps if step.learn)
        sets = convert(found, env.instruction, MARKERS["spaced"])
        for example in sets["sft_reflection"]:
            said = example.messages[1].content
            assert SPOILER.split("{")[0] not in example.messages[0].content
            assert not any(words in said for words in ACTIONS)


def _telltale(request: Request, sample: int) -> str:
    """Reveals the secret in its prompt at every second turn; asserts that other prompts ask for an analysis."""
    text = request.messages[-1].content
    if CHOOSE in text:
        return "0"
    secret = next((words for words in ACTIONS if f"best next action is {words}." in text), None)
    if secret is None:
        assert ANALYZE in text
        return "I look around."
    if request.seed.turn % 2:
        return f"You should {secret} now."
    return "The situation is difficult."


def test_an_exploring_teacher_writes_one_sentence_then_two_and_only_in_taxi_it_sees_the_best_action() -> None:
    for name in ("taxi", "alfworld"):
        env = listed_env(name=name).make()
        env.reset(env.task_ids()[0])
        for last, wanted in ((None, ANALYZE_FIRST), (Last("look", False), ANALYZE_LATER)):
            text = analysis_request(env, last, exploring=True)[-1].content
            assert text.endswith(wanted)
            assert (SPOILER.format(command=env.oracle()[0]) in text) is (name == "taxi")
    assert "one sentence, of at most 100 words" in ANALYZE_FIRST
    assert "two sentences, of at most 100 words" in ANALYZE_LATER


def test_a_teacher_that_reveals_the_secret_is_asked_again_with_another_seed() -> None:
    seen = []

    def answer(request: Request, sample: int) -> str:
        seen.append(request.seed)
        return "move south, move north, go east, go west, pick up, drop off" if len(seen) < 3 else "It is near."

    env = taxi()
    env.reset(0)
    cfg = GenerateParams(max_turns=1)
    one = made(TeachingTask(task_id=0, negative=0), env, ChatTeacher(ScriptedEngine(answer), "m", cfg), cfg)
    assert one.steps[0].reflection == "It is near."
    assert len(set(seen[:3])) == 3


def test_a_chat_teacher_is_asked_in_two_turns(explore: EnumeratedEnv) -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "hub.py sounds right." if len(request.messages) == 2 else "1."

    cfg = GenerateParams(max_tokens=77)
    one = made(TeachingTask(task_id=0), explore, ChatTeacher(ScriptedEngine(answer), "gpt", cfg), cfg)
    first, second = requests[:2]
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.messages[1].content.endswith(ANALYZE)
    assert "# Choose from" not in first.messages[1].content
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "user"]
    assert second.messages[2].content == "hub.py sounds right."
    assert "# Choose from below your command\n0. " in second.messages[3].content
    assert (first.temperature, first.top_p, first.max_tokens) == (0.7, 0.9, 77)
    assert (one.teacher, one.steps[0].label) == ("gpt", "1")
    assert (one.status, one.filename) == ("unsolved", "README.md")  # 1 was `id README.md`


def test_a_chat_teacher_corrects_a_negative_in_one_dialogue(explore: EnumeratedEnv) -> None:
    requests: list[Request] = []

    def answer(request: Request, sample: int) -> str:
        requests.append(request)
        return "bus.py says nothing of it." if len(request.messages) == 2 else "0"

    made(TeachingTask(task_id=0, negative=0), explore, ChatTeacher(ScriptedEngine(answer), "gpt", CFG))
    first, second = requests
    assert first.messages[1].content.endswith(WRONG)
    assert list(second.messages[:2]) == list(first.messages)
    assert second.messages[2].content == "bus.py says nothing of it."


def test_a_negative_records_the_file_that_its_correction_identified(explore: EnumeratedEnv) -> None:
    """As in the original, which executes the teacher's command. The field was once always null for negatives."""
    for verb, identified in (("id", True), ("cat", False)):

        def answer(request: Request, sample: int, verb: str = verb) -> str:
            listed = request.messages[-1].content.splitlines()
            return next((line.partition(".")[0] for line in listed if f". {verb} " in line), "It was wrong.")

        one = made(TeachingTask(task_id=0, negative=0), explore, ChatTeacher(ScriptedEngine(answer), "gpt", CFG))
        assert (one.status, one.steps[-1].command.split()[0]) == ("solved", verb)
        assert one.filename == (f"core/{one.steps[-1].command.removeprefix('id ')}" if identified else None)


def test_a_resumed_teacher_sends_no_request_again(tmp_path: Path, explore: EnumeratedEnv) -> None:
    asked = 0

    def answer(request: Request, sample: int) -> str:
        nonlocal asked
        asked += 1
        return "hub.py it is." if len(request.messages) == 2 else "0"

    def run() -> list[TeacherTrajectory]:
        with Journal(tmp_path / "journal") as journal:
            engine: Engine = JournaledEngine(ScriptedEngine(answer), journal, "teacher")
            teacher = ChatTeacher(engine, "gpt", CFG)
            return [made(TeachingTask(task_id=0, negative=k), explore, teacher) for k in (0, 1)]

    first = run()
    calls = asked
    assert run() == first
    assert asked == calls == 4


def test_a_teacher_failure_blocks_its_trajectory(explore: EnumeratedEnv) -> None:
    def answer(request: Request, sample: int) -> str:
        raise EngineError("the endpoint is down")

    one = made(TeachingTask(task_id=0), explore, ChatTeacher(ScriptedEngine(answer), "gpt", CFG))
    assert (one.status, one.error) == ("blocked", "the endpoint is down")


def test_equal_seeds_give_equal_trajectories_and_other_seeds_different_ones() -> None:
    env = taxi()
    one, same = (asyncio.run(teach(TeachingTask(task_id=4), env, ScriptedTeacher(), CFG, seed=1)) for _ in range(2))
    other = asyncio.run(teach(TeachingTask(task_id=4), env, ScriptedTeacher(), CFG, seed=2))
    assert one == same != other
