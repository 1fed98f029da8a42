"""Every gold answer in the real data files scores 1.0, and no scripted slip does (needs the files; see DATA_MIRROR)."""

import pytest

from selfimprove.core.records import read_rows
from selfimprove.envs.math.world import make_env
from tests.support.real_data import real


@pytest.mark.parametrize(
    ("name", "extraction", "file", "count"),
    [
        ("gsm8k", "robust", "gsm8k/train.jsonl", 7473),
        ("gsm8k", "strict", "gsm8k/test.jsonl", 1319),
        ("gsm8k", "robust", "gsm8k/test.jsonl", 1319),
        ("math", "robust", "math/test.jsonl", 1000),
    ],
)
def test_every_gold_answer_scores_1_and_no_scripted_slip_does(
    name: str, extraction: str, file: str, count: int
) -> None:
    env = make_env(name, extraction)
    path = real(file)
    problems = env.load(read_rows(path), path)
    assert len(problems) == len({problem.id for problem in problems}) == count
    wrong = [problem.id for problem in problems if env.grade(env.demonstration(problem), problem).reward != 1.0]
    assert wrong == []
    slipped = [problem.id for problem in problems if env.grade(env.slip(problem, 0), problem).reward == 1.0]
    assert slipped == []
    if name == "gsm8k":  # the gold answers with a comma
        assert sum("," in problem.answer.rpartition("####")[2] for problem in problems) == {7473: 79, 1319: 14}[count]
