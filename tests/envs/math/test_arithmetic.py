"""The arithmetic generator: GSM8K's format, splits disjoint by content, difficulty settings, an expert that errs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey
from selfimprove.envs.math.arithmetic import (
    SHARES,
    Difficulty,
    WordProblem,
    generate,
    split_of,
)
from selfimprove.envs.math.arithmetic_expert import expert, solution
from selfimprove.envs.math.arithmetic_words import SCENES

SPLITS = tuple(SHARES)
MIXED = Difficulty(steps={2: 1, 3: 1, 4: 1, 5: 1}, per_line={1: 1, 2: 1, 3: 1})


def boxed(text: str) -> int:
    found = re.findall(r"\\boxed\{(\d+)\}", text)
    assert len(found) == 1, text
    return int(found[0])


def gold(problem: WordProblem) -> int:
    last = problem.answer.rsplit("\n", 1)[1]
    assert re.fullmatch(r"#### \d+", last), problem.answer
    return int(last[5:])


def holds(line: str) -> bool:
    """Whether ``expression = value …`` is true. The text is our own, so ``eval`` is safe."""
    left, _, right = line.partition(" = ")
    return eval(left) == int(re.match(r"\d+", right)[0])  # type: ignore[index]


def test_true_equations_and_the_errorless_expert_reach_every_gold_answer() -> None:
    for split in SPLITS:
        for problem in generate(400, seed=3, split=split, difficulty=MIXED):  # type: ignore[arg-type]
            lines = solution(problem).split("\n")
            assert all(holds(line) for line in lines[:-1]), problem
            assert int(re.search(r"= (\d+)", lines[-2])[1]) == gold(problem)  # type: ignore[index]
            assert boxed(solution(problem)) == gold(problem)
            assert solution(problem) == expert(problem, error_rate=0.0, key="k")
            assert "####" not in solution(problem)
            assert "\\boxed" not in problem.answer


def test_annotations_have_gsm8ks_form_and_omitting_them_changes_nothing_else() -> None:
    noted = generate(200, seed=3, split="dev", difficulty=MIXED)
    plain = generate(200, seed=3, split="dev", difficulty=MIXED, annotations=False)
    for with_notes, without in zip(noted, plain, strict=True):
        for expression, value in re.findall(r"<<([^=<>]+)=(\d+)>>", with_notes.answer):
            assert eval(expression) == int(value)
        assert with_notes.answer.count("<<") == without.answer.count("=")
        assert re.sub(r"<<[^<>]*>>", "", with_notes.answer) == without.answer
        assert with_notes.question == without.question
        assert solution(with_notes) == solution(without)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), split=st.sampled_from(SPLITS))
def test_a_split_contains_only_questions_whose_content_belongs_to_it(seed: Any, count: Any, split: Any) -> None:
    problems = generate(count, seed=seed, split=split, difficulty=Difficulty())
    assert len({problem.question for problem in problems}) == len({problem.id for problem in problems}) == count
    assert {split_of(problem.question) for problem in problems} == {split}


def test_splits_are_disjoint_across_seeds_and_have_their_shares() -> None:
    narrow = Difficulty(steps={2: 1}, term=(2, 12), factor=(2, 5), multiplicand=(2, 9))  # collisions are likely
    seen = {
        split: {p.question for seed in (1, 2) for p in generate(600, seed=seed, split=split, difficulty=narrow)}  # type: ignore[arg-type]
        for split in SPLITS
    }
    for first in SPLITS:
        for second in SPLITS:
            assert first == second or not seen[first] & seen[second]
    counts = Counter(split_of(f"How many is {i}?") for i in range(20000))
    for split, share in SHARES.items():
        assert abs(counts[split] / 200 - share) < 1.5  # type: ignore[index]


def test_problems_depend_on_the_seed_and_a_shorter_list_is_a_prefix_of_a_longer_one() -> None:
    long = generate(60, seed=5, split="train", difficulty=MIXED)
    assert generate(20, seed=5, split="train", difficulty=MIXED) == long[:20]
    assert generate(20, seed=6, split="train", difficulty=MIXED) != long[:20]


def test_a_problem_is_pinned_so_that_published_splits_do_not_drift() -> None:
    problem = generate(1, seed=1, split="test", difficulty=Difficulty())[0]
    assert problem.id == "arithmetic-ee635686046d3ae1"
    assert problem.row() == {
        "question": "Maya keeps 12 stickers on each of 5 shelves. Maya buys 3 packs of 4 stickers. Maya gives 21 "
        "stickers to Alba. How many stickers does Maya have now?",
        "answer": "12 * 5 = <<12*5=60>>60 stickers.\n3 * 4 = <<3*4=12>>12 stickers.\n60 + 12 = <<60+12=72>>72 "
        "stickers.\n72 - 21 = <<72-21=51>>51 stickers.\n#### 51",
    }


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 6])
def test_difficulty_sets_steps_per_problem_and_operations_per_line(steps: int) -> None:
    for per_line in (1, 2):
        difficulty = Difficulty(steps={steps: 1}, per_line={per_line: 1})
        problems = generate(100, seed=1, split="train", difficulty=difficulty)
        texts = [solution(problem).rsplit("\n", 1)[0] for problem in problems]
        assert {len(re.findall(r" [-+*/] ", text)) for text in texts} == {steps}
        most = max(len(re.findall(r" [-+*/] ", line)) for text in texts for line in text.split("\n"))
        assert most == per_line


def test_difficulty_sets_the_operands_and_the_largest_value() -> None:
    difficulty = Difficulty(term=(100, 120), factor=(3, 4), multiplicand=(50, 55), largest=600)
    for problem in generate(300, seed=1, split="train", difficulty=difficulty):
        told = [int(number) for number in re.findall(r"\d+", problem.question)]
        assert all(n in range(100, 121) or n in (3, 4) or n in range(50, 56) for n in told), problem.question
        assert max(int(number) for number in re.findall(r"= (\d+)", solution(problem))) <= 600


def test_problems_are_varied() -> None:
    problems = generate(3000, seed=1, split="demonstrations", difficulty=Difficulty())
    shapes = {re.sub(r"\d+|[A-Z][a-z]+", "_", problem.question) for problem in problems}
    assert len(SCENES) >= 7
    assert len(shapes) > 800
    for thing in ("marbles", "cookies", "euros", "plums", "miles", "pages", "students"):
        assert any(thing in problem.question for problem in problems)
    assert not any("{" in p.question or "{" in p.answer for p in problems)


def test_step_counts_follow_their_distribution() -> None:
    problems = generate(2000, seed=1, split="train", difficulty=Difficulty(steps={2: 3, 4: 1}))
    four = sum(p.answer.count("\n") == 4 for p in problems)
    assert 300 < four < 700  # some plots fit better than others, so the weights hold only approximately
    assert {p.answer.count("\n") for p in problems} == {2, 4}


# --- the expert ---


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_the_expert_errs_at_its_configured_rate_and_an_error_never_reaches_the_gold_answer(rate: float) -> None:
    problems = generate(1000, seed=2, split="train", difficulty=MIXED)
    wrong = 0
    for problem in problems:
        text = expert(problem, error_rate=rate, key=SeedKey(1, problem.id, 1))
        if text == solution(problem):
            assert boxed(text) == gold(problem)
        else:
            wrong += 1
            assert boxed(text) != gold(problem)
    assert abs(wrong / 1000 - rate) < 0.04


def test_a_slip_is_made_once_and_carried_through() -> None:
    carried = 0
    for problem in generate(600, seed=2, split="train", difficulty=MIXED):
        right = solution(problem).split("\n")
        lines = expert(problem, error_rate=1.0, key=problem.id).split("\n")
        assert len(lines) == len(right)
        assert int(re.search(r"= (\d+)", lines[-2])[1]) == boxed(lines[-1])  # type: ignore[index]
        false = [line for line in lines[:-1] if not holds(line)]
        assert len(false) == 1  # every other line is true for the numbers it uses
        carried += lines.index(false[0]) < len(lines) - 2
    assert carried > 200


def test_the_experts_attempts_depend_only_on_the_key() -> None:
    problem = generate(1, seed=2, split="train", difficulty=MIXED)[0]
    texts = [expert(problem, error_rate=1.0, key=SeedKey(1, problem.id, 1, i)) for i in range(30)]
    assert texts == [expert(problem, error_rate=1.0, key=SeedKey(1, problem.id, 1, i)) for i in range(30)]
    assert len(set(texts)) > 5


# --- bad input ---


@pytest.mark.parametrize(
    "bad",
    [
        {"term": (9, 2)},
        {"steps": {1: 1.0}},
        {"steps": {7: 1.0}},
        {"steps": {}},
        {"per_line": {0: 1.0}},
        {"steps": {2: 0.0}},
        {"factor": (0, 3)},
        {"operands": 3},
        {"term": ["2", 30]},
        {"term": [2, 30.5]},
        {"term": [2, 30, 40]},
        {"steps": {2: "1"}},
        {"largest": "1000"},
    ],
)
def test_an_invalid_difficulty_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Difficulty.model_validate(bad)


def test_difficulty_accepts_the_types_that_yaml_gives() -> None:
    assert Difficulty.model_validate({"steps": {"2": 1, "3": 2}, "term": [2, 30]}).steps == {2: 1.0, 3: 2.0}


def test_too_narrow_a_difficulty_is_an_error_that_suggests_widening_it() -> None:
    narrow = Difficulty(steps={2: 1}, term=(50, 50), factor=(2, 2), multiplicand=(50, 55), largest=10)
    with pytest.raises(UserError, match="widen the difficulty"):
        generate(10**6, seed=1, split="dev", difficulty=narrow)


def test_the_expert_refuses_an_invalid_rate_and_a_problem_that_was_not_generated() -> None:
    problem = generate(1, seed=2, split="train", difficulty=MIXED)[0]
    with pytest.raises(UserError, match="between 0 and 1"):
        expert(problem, error_rate=1.5, key="k")
    with pytest.raises(UserError, match="only solve generated problems"):
        solution(WordProblem("How many?", "He has 3+4=7 apples.\n#### 7"))
