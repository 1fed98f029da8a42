"""The scripted teacher errs at its declared rate and is deterministic."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Request
from selfimprove.envs.interface import Problem, Teaches
from selfimprove.envs.math.world import make_env
from selfimprove.methods.rise.params import TaskParams
from selfimprove.methods.rise.tasks import build_splits
from selfimprove.methods.rise.teacher import scripted_teacher

ENV = make_env("gsm8k")


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    params = TaskParams(demonstrations=0, train=300, dev=0, test=1)
    return build_splits(params, ENV, seed=1, download=Path("unused"), mirror=None)["train"]


def ask(problem: Problem, turn: int = 1) -> Request:
    return Request([], SeedKey(7, problem.id, turn))


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_the_teacher_errs_at_its_declared_rate(problems: list[Problem], embedded: bool, rate: float) -> None:
    teach = scripted_teacher(problems, ENV, embedded=embedded, error_rate=rate)
    rewards = [ENV.grade(teach(ask(problem), 0), problem).reward for problem in problems]
    assert set(rewards) <= {0, 1}  # an error is a wrong answer, never an unreadable one
    wrong = rewards.count(0) / len(rewards)
    assert wrong == rate if rate in (0.0, 1.0) else abs(wrong - rate) < 0.09  # 3.4 standard errors


@pytest.mark.parametrize("embedded", [True, False])
def test_an_answer_depends_only_on_its_seed_key(problems: list[Problem], embedded: bool) -> None:
    teach = scripted_teacher(problems, ENV, embedded=embedded, error_rate=0.5)
    first = [teach(ask(problem), 0) for problem in problems]
    again = scripted_teacher(problems[::-1], ENV, embedded=embedded, error_rate=0.5)
    assert [again(ask(problem), 0) for problem in problems] == first
    for other in ([teach(ask(problem), 1) for problem in problems], [teach(ask(p, turn=2), 0) for p in problems]):
        assert 50 < sum(a != b for a, b in zip(first, other, strict=True)) < 250  # errors are independent


def test_the_environment_s_own_teacher_errs_in_its_own_problems_and_a_slip_is_made_in_those_of_files(
    problems: list[Problem],
) -> None:
    assert isinstance(ENV, Teaches)
    own, files = (scripted_teacher(problems, ENV, embedded=embedded, error_rate=1.0) for embedded in (True, False))
    taught = [ENV.teach(problem, 1.0, ask(problem).seed.at(0)) for problem in problems]
    slips = [ENV.slip(problem, ask(problem).seed.at(0)) for problem in problems]
    assert [own(ask(problem), 0) for problem in problems] == taught
    assert [files(ask(problem), 0) for problem in problems] == slips != taught
