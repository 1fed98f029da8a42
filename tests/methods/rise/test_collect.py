"""Collection and evaluation of one problem (docs/rise.md, R12 to R17, R32 and R33)."""

import asyncio
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.feedback import FAILURE, SUCCESS
from selfimprove.envs.interface import EnvError, Grade
from selfimprove.envs.math.world import make_env
from selfimprove.methods.rise.collect import Play, collect, collection_metrics, evaluate
from selfimprove.methods.rise.convert import convert
from selfimprove.methods.rise.metrics import evaluate_metrics
from selfimprove.methods.rise.params import ConvertParams, EvaluateParams, GenerateParams
from selfimprove.methods.rise.prompts import opening

ENV = make_env("gsm8k")
(PROBLEM,) = ENV.load([(1, {"question": "3 + 4?", "answer": "#### 7"})], "rows")  # type: ignore[arg-type]
RIGHT, WRONG, UNREADABLE = r"so \boxed{7}", r"so \boxed{8}", "hm"
NO = FAILURE.format(question="3 + 4?")
PLAY = Play(ENV, True, 5)


class Script:
    """An engine that answers from a table (turn -> samples) and records its requests."""

    def __init__(self, *turns: Any, failing: Any = ()) -> None:
        self.turns, self.failing = turns, failing
        self.asked: list[Any] = []
        self.engine = ScriptedEngine(self.answer)
        self.stats = self.engine.stats

    def answer(self, request: Any, index: Any) -> Any:
        samples = self.turns[request.seed.turn]
        return samples[index % 1000 if index < 1000 else len(samples) - 1]

    async def generate(self, request: Any) -> list[Completion]:
        self.asked.append(request)
        if request.seed.turn in self.failing:
            raise EngineError("the endpoint died")
        return await self.engine.generate(request)

    def fits(self, messages: Any, max_tokens: Any) -> Any:
        return self.engine.fits(messages, max_tokens)

    async def close(self) -> None:
        await self.engine.close()


def gather(engines: Any, models: Any, samples: Any, **more: Any) -> Any:
    cfg = GenerateParams(tasks=1, max_turns=len(models), models=models, num_of_samples=samples, **more)
    return asyncio.run(collect(PROBLEM, engines, PLAY, cfg))


def assess(engine: Any, turns: int = 3, **more: Any) -> Any:
    cfg = EvaluateParams(max_turns=turns, parallel_samples=more.pop("parallel_samples", 1), **more)
    return asyncio.run(evaluate(PROBLEM, engine, PLAY, cfg))


def contents(request: Any) -> Any:
    return [message.content for message in request.messages[3:]]


def test_each_turn_uses_its_own_model_and_number_of_samples() -> None:
    student, teacher = Script([WRONG]), Script(None, [RIGHT] * 3)
    one = gather({"student": student, "teacher": teacher}, ["student", "teacher"], [1, 3])
    assert [(turn.model, len(turn.attempts)) for turn in one.turns] == [("student", 1), ("teacher", 3)]
    assert [request.n for request in student.asked + teacher.asked] == [1, 3]
    assert teacher.asked[0].seed == SeedKey(5, PROBLEM.id, 1)
    assert contents(teacher.asked[0]) == [WRONG, NO]
    assert (one.status, one.gold, one.rewards) == ("solved", "#### 7", [0, 1])


def test_self_distillation_takes_the_best_of_n() -> None:
    student = Script([UNREADABLE], [WRONG, UNREADABLE, RIGHT, WRONG])
    one = gather({"student": student}, ["student", "student"], [1, 4])
    assert [turn.chosen for turn in one.turns] == [0, 2]
    assert [attempt.reward for attempt in one.turns[1].attempts] == [0, -1, 1, 0]  # all samples stay in the log


def test_ties_go_to_the_earliest_sample() -> None:
    student = Script([UNREADABLE, r"a \boxed{8}", r"b \boxed{9}"], [RIGHT, RIGHT + "!"])
    one = gather({"s": student}, ["s", "s"], [3, 2])
    assert [turn.chosen for turn in one.turns] == [1, 0]
    assert contents(student.asked[1]) == [r"a \boxed{8}", NO]


def test_collection_stops_at_the_first_correct_attempt() -> None:
    student = Script([WRONG], [RIGHT], [WRONG])
    one = gather({"s": student}, ["s"] * 3, [1] * 3)
    assert len(one.turns) == len(student.asked) == 2
    assert [turn.observation for turn in one.turns] == [NO, SUCCESS]


def test_collection_ends_after_max_turns() -> None:
    one = gather({"s": Script([WRONG], [UNREADABLE])}, ["s"] * 2, [1] * 2)
    assert (one.status, one.rewards) == ("unsolved", [0, -1])


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_turn_blocks_its_episode_and_keeps_the_earlier_turns(failing: int) -> None:
    one = gather({"s": Script([WRONG], [RIGHT], failing=(failing,))}, ["s"] * 2, [1] * 2)
    assert (one.status, len(one.turns), one.error) == ("blocked", failing, "the endpoint died")


def test_collection_respects_the_dialogue_limit() -> None:
    student = Script(*[[f"{WRONG} {t}"] for t in range(4)])
    gather({"s": student}, ["s"] * 4, [1] * 4, dialogue_limit=4)
    assert contents(student.asked[3]) == [f"{WRONG} 2", NO]
    assert list(student.asked[3].messages[:3]) == opening("3 + 4?")


def test_every_request_has_the_params_temperature_top_p_and_max_tokens() -> None:
    settings = {"temperature": 0.3, "top_p": 0.9, "max_tokens": 77}
    collected, judged = Script([WRONG], [WRONG]), Script([WRONG], [WRONG])
    gather({"s": collected}, ["s"] * 2, [1] * 2, **settings)
    assess(judged, turns=2, **settings)
    asked = [*collected.asked, *judged.asked]
    assert [(one.temperature, one.top_p, one.max_tokens) for one in asked] == [(0.3, 0.9, 77)] * 4


@pytest.mark.parametrize("few_shot", [False, True])
def test_prompts_of_collection_and_evaluation_open_with_the_worked_example_only_if_few_shot(few_shot: bool) -> None:
    student, play = Script([WRONG], [WRONG]), Play(ENV, few_shot, 5)
    asked = GenerateParams(tasks=1, max_turns=2, models=["s"] * 2, num_of_samples=[1] * 2)
    one = asyncio.run(collect(PROBLEM, {"s": student}, play, asked))  # type: ignore[dict-item]
    both = asyncio.run(evaluate(PROBLEM, student, play, EvaluateParams(max_turns=2, parallel_samples=1)))  # type: ignore[arg-type]
    start = opening("3 + 4?", few_shot)
    assert [episode.prompt for episode in (one, *both)] == [start] * 3
    assert [list(request.messages[: len(start)]) for request in student.asked] == [start] * 4
    assert [len(request.messages) - len(start) for request in student.asked] == [0, 2, 0, 2]


@pytest.mark.parametrize("remove_duplication", [False, True])
@pytest.mark.parametrize(
    ("limits", "omitted"),
    [
        ({}, [0, 0, 0, 0, 0]),
        ({"dialogue_limit": 4}, [0, 0, 2, 4, 6]),
        ({"pairs": 1}, [0, 0, 2, 4, 6]),
        ({"window": 2}, [0, 0, 2, 4, 6]),
    ],
)
def test_each_example_contains_exactly_the_prompt_that_the_model_saw(
    limits: Any, omitted: Any, remove_duplication: bool
) -> None:
    student = Script([WRONG], [WRONG], [UNREADABLE], [" " + WRONG + "\n"], [RIGHT])  # turns 2 and 4 repeat turn 1
    if "pairs" in limits:  # this many pairs fit the engine's context
        student.fits = lambda messages, max_tokens: len(messages) <= 3 + 2 * limits["pairs"]  # type: ignore[method-assign]
    one = gather(
        {"s": student},
        ["s"] * 5,
        [1] * 5,
        dialogue_limit=limits.get("dialogue_limit", 20),
        context_window=limits.get("window"),
    )
    assert [turn.omitted for turn in one.turns] == omitted
    cfg = ConvertParams(remove_duplication=remove_duplication, shuffle=False)
    examples = convert([one], cfg, seed=0).examples
    kept = [0, 2, 4] if remove_duplication else range(5)
    assert [example.messages[:-1] for example in examples] == [list(student.asked[turn].messages) for turn in kept]
    metrics = collection_metrics([one])
    assert metrics["shortened_prompts"]["mean"] == sum(n > 0 for n in omitted) / 5
    assert metrics["shortened_prompts"]["n"] == 5
    assert collection_metrics([one], 2)["shortened_prompts"]["mean"] == 0  # pairs that a window of 2 hides do not count


def test_evaluation_counts_prompts_shortened_beyond_the_context_window() -> None:
    student = Script(*[[WRONG]] * 4)
    for limits, omitted, shortened in (
        ({"context_window": 4}, [0, 0, 0, 0], 0),
        ({"context_window": 2}, [0, 0, 2, 4], 0),  # messages outside the window do not count
        ({"context_window": 4, "dialogue_limit": 4}, [0, 0, 2, 4], 2 / 4),
        ({"context_window": 3, "dialogue_limit": 4}, [0, 0, 2, 4], 2 / 4),
        ({"context_window": 2, "dialogue_limit": 2}, [0, 2, 4, 6], 3 / 4),
    ):
        sequential, parallel = assess(student, turns=4, **limits)
        assert [turn.omitted for turn in sequential.turns] == omitted
        metrics = evaluate_metrics([sequential], [parallel], ENV.equivalent, window=limits["context_window"])
        assert metrics["shortened_prompts"]["mean"] == shortened


def test_completions_cut_by_the_token_limit_are_counted_once() -> None:
    student = Script([WRONG, RIGHT, WRONG], [WRONG])
    sequential, parallel = assess(student, turns=2, parallel_samples=3)
    for attempt in (sequential.turns[0].attempt, parallel.turns[0].attempts[0], sequential.turns[1].attempt):
        attempt.finish = "length"
    cut = evaluate_metrics([sequential], [parallel], ENV.equivalent)["cut_completions"]
    assert (cut["mean"], cut["n"]) == (2 / 4, 4)
    assert collection_metrics([sequential])["cut_completions"]["mean"] == 1


def test_a_collection_reports_its_right_and_unreadable_first_attempts() -> None:
    table = [[RIGHT], [WRONG], [UNREADABLE], [UNREADABLE], [UNREADABLE]]
    episodes = [gather({"s": Script(first, [RIGHT])}, ["s"] * 2, [1] * 2) for first in table]
    blocked = gather({"s": Script([RIGHT], failing=(0,))}, ["s"], [1])
    episodes[3].turns[0].attempt.reward = 0.0  # MATH gives no -1
    metrics = collection_metrics([*episodes, blocked])
    assert [metrics[name]["mean"] for name in ("first_right", "first_unparsable", "solved")] == [1 / 5, 3 / 5, 5 / 6]
    assert [metrics[name] for name in ("episodes", "blocked", "samples")] == [6, 1, 9]


def test_all_degenerate_samples_are_dropped() -> None:
    stuck = "no " * 151
    one = gather({"s": Script([stuck, stuck, WRONG, stuck])}, ["s"], [4])
    assert [attempt.text for attempt in one.turns[0].attempts] == [WRONG]


def test_each_redraw_has_its_own_noise_and_the_number_of_redraws_is_limited() -> None:
    stuck = "no " * 151
    student = Script([stuck, stuck])
    one = gather({"s": student}, ["s"], [2], resamples=2)
    assert [request.seed.sample for request in student.asked] == [0, 1000, 2000]
    assert [attempt.reward for attempt in one.turns[0].attempts] == [-1]
    many = Script([stuck] * 1500)
    gather({"s": many}, ["s"], [1500], resamples=1)
    assert [request.seed.sample for request in many.asked] == [0, 1500]  # beyond the first draw's samples
    second = Script([stuck, stuck, WRONG])  # the second draw returns the last entry
    assert gather({"s": second}, ["s"], [2]).turns[0].attempt.text == WRONG


def test_degenerate_samples_are_counted_in_all_draws() -> None:
    stuck = "no " * 151
    mixed = gather({"s": Script([stuck, stuck, WRONG, stuck])}, ["s"], [4])
    redrawn = gather({"s": Script([stuck, stuck])}, ["s"], [2], resamples=2)
    assert [one.turns[0].degenerate for one in (mixed, redrawn)] == [3, 5]
    clean = gather({"s": Script([WRONG])}, ["s"], [1])
    assert collection_metrics([mixed, redrawn, clean])["degenerate"]["mean"] == 8 / 11
    assert "degenerate" not in collection_metrics([clean])


def test_the_noise_of_an_evaluation_is_keyed_by_run_problem_and_turn() -> None:
    student = Script([WRONG, WRONG], [WRONG])
    assess(student, turns=2, parallel_samples=2)
    assert [(request.seed, request.n) for request in student.asked] == [
        (SeedKey(5, PROBLEM.id, 0), 2),
        (SeedKey(5, PROBLEM.id, 1), 1),
    ]


def test_without_an_oracle_every_turn_is_played_and_called_incorrect() -> None:
    student = Script([RIGHT], [RIGHT + "!"], [WRONG])
    sequential, _ = assess(student, context_window=2)
    assert sequential.rewards == [1, 1, 0]  # true rewards are logged
    assert {turn.observation for turn in sequential.turns} == {NO}
    assert contents(student.asked[2]) == [RIGHT + "!", NO]


def test_the_sequential_and_the_parallel_run_each_have_a_name_and_a_status() -> None:
    sequential, parallel = assess(Script([WRONG, WRONG], [RIGHT], [WRONG]), parallel_samples=2)
    assert (sequential.run, sequential.status) == ("sequential", "solved")  # solved at the second turn
    assert (parallel.run, parallel.status) == ("parallel", "unsolved")  # none of the first attempts is correct
    for text, status in ((WRONG, "unsolved"), (RIGHT, "solved")):
        assert assess(Script(*[[text]] * 3))[0].status == status
    cut = assess(Script([WRONG, RIGHT], failing=(1,)), parallel_samples=2)
    assert [(one.run, one.status) for one in cut] == [("sequential", "blocked"), ("parallel", "solved")]
    assert [one.error for one in cut] == ["the endpoint died", None]
    gone = assess(Script([WRONG, WRONG], failing=(0,)), parallel_samples=2)
    assert [(one.status, one.error) for one in gone] == [("blocked", "the endpoint died")] * 2


def test_with_an_oracle_the_run_stops_when_solved_and_p1_is_unchanged() -> None:
    table = [[WRONG], [RIGHT], [WRONG]]
    free, stopped = assess(Script(*table)), assess(Script(*table), oracle=True)
    assert [len(run.turns) for run in (free[0], stopped[0])] == [3, 2]
    assert [turn.observation for turn in stopped[0].turns] == [NO, SUCCESS]
    metrics = [
        evaluate_metrics([one], [first], ENV.equivalent, turns=3, oracle=oracle)
        for (one, first), oracle in ((free, False), (stopped, True))
    ]
    assert metrics[0]["p1@t3"] == metrics[1]["p1@t3"] == {"mean": 1.0, "se": 0.0, "n": 1}


@pytest.mark.parametrize(("window", "shown"), [(1, []), (2, [1]), (3, [0, 1]), (5, [0, 1])])
def test_evaluation_prompts_show_only_the_context_window(window: int, shown: Any) -> None:
    student = Script(*[[f"{WRONG} {t}"] for t in range(3)])
    assess(student, context_window=window)
    assert contents(student.asked[2]) == [text for t in shown for text in (f"{WRONG} {t}", NO)]


def test_the_history_contains_the_first_sample_not_the_best() -> None:
    student = Script([WRONG, RIGHT, RIGHT], [UNREADABLE])
    sequential, parallel = assess(student, turns=2, parallel_samples=3)
    assert contents(student.asked[1]) == [WRONG, NO]
    assert [attempt.reward for attempt in parallel.turns[0].attempts] == [0, 1, 1]
    assert sequential.turns[0].attempts == parallel.turns[0].attempts[:1]
    assert [len(turn.attempts) for turn in sequential.turns] == [1, 1]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_in_evaluation_is_recorded_and_counted(failing: int) -> None:
    sequential, parallel = assess(Script([RIGHT] * 3, [RIGHT], failing=(failing,)), turns=2, parallel_samples=3)
    assert (sequential.status, len(sequential.turns)) == ("blocked", failing)
    metrics = evaluate_metrics([sequential], [parallel], ENV.equivalent, turns=2)
    assert metrics["m1@t1"]["mean"] == metrics["p1@t2"]["mean"] == failing
    assert metrics["accuracy@t2"] == {"mean": 0.0, "se": 0.0, "n": 1}
    assert metrics["blocked"]["mean"] == 1


def test_tasks_limit_and_offset_select_a_range_of_the_split() -> None:
    split = list("abcdef")
    base: dict[str, Any] = {"max_turns": 1, "models": ["s"], "num_of_samples": [1]}
    assert GenerateParams(tasks=4, **base).select(split) == list("abcd")  # type: ignore[arg-type]
    assert GenerateParams(tasks=4, offset=2, limit=2, **base).select(split) == list("cd")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"generate\.tasks"):
        GenerateParams(tasks=4, offset=3, **base).select(split)  # type: ignore[arg-type]


class Small(Script):
    """An engine whose context holds at most ``room`` messages and a completion of 60 tokens."""

    def __init__(self, room: Any, *turns: Any) -> None:
        super().__init__(*turns)
        self.room = room

    def fits(self, messages: Any, max_tokens: Any) -> bool:
        return len(messages) <= self.room and max_tokens <= 60


@pytest.mark.parametrize(("room", "shown"), [(9, [0, 1, 2]), (8, [1, 2]), (6, [2]), (4, []), (1, [])])
def test_an_over_long_prompt_loses_its_oldest_pairs_whole_and_never_its_opening(room: int, shown: Any) -> None:
    table = [[f"{WRONG} {t}"] for t in range(4)]
    student = Small(room, *table)
    gather({"s": student}, ["s"] * 4, [1] * 4, max_tokens=60)
    assert contents(student.asked[3]) == [text for t in shown for text in (f"{WRONG} {t}", NO)]
    assert list(student.asked[3].messages[:3]) == opening("3 + 4?")
    judged = Small(room, *table)
    assess(judged, turns=4, context_window=4, max_tokens=60)
    assert list(judged.asked[3].messages) == list(student.asked[3].messages)


class Told:
    """An environment with its own feedback. It fails on the attempt ``crash``."""

    def __init__(self) -> None:
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(ENV, name)

    async def carry_out(self, attempt: str, problem: Any) -> tuple[Grade, str]:
        if attempt == "crash":
            raise EnvError("the server is gone")
        return ENV.grade(attempt, problem), f"you said {len(attempt)} letters"

    async def close(self) -> None:
        self.closed += 1


def test_feedback_includes_the_environment_s_text_on_the_outcome_of_the_attempt() -> None:
    env, student = Told(), Script([WRONG, UNREADABLE], [RIGHT], [RIGHT])
    play = Play(env, True, 5)  # type: ignore[arg-type]
    told = f"you said {len(WRONG)} letters\nThe answer is incorrect. Please try again."
    cfg = GenerateParams(tasks=1, max_turns=2, models=["student"] * 2, num_of_samples=[2, 1])
    one = asyncio.run(collect(PROBLEM, {"student": student}, play, cfg))  # type: ignore[dict-item]
    assert [turn.observation for turn in one.turns] == [told, SUCCESS]
    assert contents(student.asked[1]) == [WRONG, told]
    blind = EvaluateParams(max_turns=3, parallel_samples=1)
    run, _ = asyncio.run(evaluate(PROBLEM, student, play, blind))  # type: ignore[arg-type]
    assert run.turns[1].attempt.reward == 1
    assert run.turns[1].observation == told.replace(str(len(WRONG)), str(len(RIGHT)))  # no oracle: called incorrect


def test_a_failing_environment_blocks_the_episode_and_is_closed() -> None:
    env, student = Told(), Script([WRONG], ["crash"])
    play = Play(env, True, 5)  # type: ignore[arg-type]
    cfg = GenerateParams(tasks=1, max_turns=2, models=["student"] * 2, num_of_samples=[1, 1])

    async def run() -> None:
        async with play:
            one = await collect(PROBLEM, {"student": student}, play, cfg)  # type: ignore[dict-item]
            sequential, parallel = await evaluate(
                PROBLEM, student, play, EvaluateParams(max_turns=2, parallel_samples=1)
            )  # type: ignore[arg-type]
        assert (one.status, one.error, len(one.turns)) == ("blocked", "the server is gone", 1)
        assert (sequential.status, parallel.status) == ("blocked", "unsolved")

    asyncio.run(run())
    assert env.closed == 1
