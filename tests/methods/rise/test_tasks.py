"""Splits of problems (frozen, disjoint, reproducible) and the demonstrations built from them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows, write_rows
from selfimprove.core.sources import SOURCES, sha256_of
from selfimprove.envs.math.world import make_env
from selfimprove.envs.plans import RULE, Plans
from selfimprove.envs.registry import answer_env
from selfimprove.methods.rise.params import TaskParams
from selfimprove.methods.rise.prompts import feedback, opening
from selfimprove.methods.rise.tasks import SPLITS, build_splits, demonstrate, load_split, texts, to_row
from selfimprove.methods.splits import sizes, split_hash
from tests.support.real_data import real_sources

ROOT = Path(__file__).resolve().parents[3]
GSM8K, MATH = make_env("gsm8k"), make_env("math")
COUNTS = {"demonstrations": 40, "train": 30, "dev": 5, "test": 20}


def splits(tmp_path: Path, *, seed: int = 3, mirror: Path | None = None, env: Any = GSM8K, **params: Any) -> dict:
    return build_splits(
        TaskParams(**{**COUNTS, **params}), env, seed=seed, download=tmp_path / "download", mirror=mirror
    )


def hashes(tmp_path: Path, *, seed: int = 3) -> dict[str, str]:
    made = splits(tmp_path, seed=seed)
    return {name: size["hash"] for name, size in sizes({name: [one.id for one in made[name]] for name in made}).items()}


def own_files(folder: Path, **counts: int) -> dict[str, str]:
    files, number = {}, 0
    for name, count in counts.items():
        rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(number, number + count)]
        number += count
        files[name] = str(folder / f"{name}.jsonl")
        write_rows(Path(files[name]), rows)
    return files


def assert_disjoint_and_sized(made: dict, counts: dict[str, int]) -> None:
    assert {name: len(made[name]) for name in SPLITS} == counts
    for key in ("id", "question"):
        everything = [getattr(problem, key) for name in SPLITS for problem in made[name]]
        assert len(set(everything)) == len(everything)


def test_splits_have_the_requested_sizes_and_share_no_problem(tmp_path: Path) -> None:
    assert_disjoint_and_sized(splits(tmp_path), COUNTS)


def test_splits_are_the_same_in_another_process_and_differ_under_another_seed(tmp_path: Path) -> None:
    here = hashes(tmp_path)
    program = "import json, pathlib, tests.methods.rise.test_tasks as t\nprint(json.dumps(t.hashes(pathlib.Path('.'))))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == here
    assert not set(here.values()) & set(hashes(tmp_path, seed=4).values())


def test_a_smaller_test_split_is_a_prefix_of_a_larger_one(tmp_path: Path) -> None:
    assert splits(tmp_path, test=5)["test"] == splits(tmp_path)["test"][:5]


def test_the_split_hash_depends_on_the_ids_and_their_order() -> None:
    assert split_hash(("a", "b")) == split_hash(["a", "b"])
    assert len({split_hash(ids) for ids in ("ab", "ba", "a", ["ab"])}) == 4


def test_a_split_file_round_trips(tmp_path: Path) -> None:
    test = splits(tmp_path)["test"]
    write_rows(tmp_path / "test.jsonl", [to_row(problem, GSM8K) for problem in test])
    assert load_split(tmp_path / "test.jsonl", GSM8K) == test


def test_demonstrations_open_like_episodes_and_train_only_on_the_gold_solution(tmp_path: Path) -> None:
    problems = splits(tmp_path)["demonstrations"]
    for few_shot in (False, True):
        made = demonstrate(problems, GSM8K, few_shot=few_shot)
        assert [example.source for example in made] == [problem.id for problem in problems]
        for example, problem in zip(made, problems, strict=True):
            assert example.messages[:-1] == opening(problem.question, few_shot)
            assert [message.weight for message in example.messages] == [0.0] * (len(example.messages) - 1) + [1.0]
            assert GSM8K.grade(example.messages[-1].content, problem).reward == 1


def test_the_tokenizer_s_texts_are_each_problem_s_question_the_feedback_on_a_wrong_attempt_and_its_solution(
    tmp_path: Path,
) -> None:
    problems = splits(tmp_path)["demonstrations"][:2]
    assert [row["text"] for row in texts(problems, GSM8K)] == [
        text
        for problem in problems
        for text in (
            opening(problem.question, few_shot=False)[0].content,
            feedback(0.0, problem.question),
            GSM8K.demonstration(problem),
        )
    ]


def test_the_instruction_is_one_fixed_text_and_is_absent_from_all_other_texts() -> None:
    env = answer_env(name="textcraft").make()
    assert isinstance(env, Plans)
    problems = env.problems({"demonstrations": 5}, seed=1)["demonstrations"]
    fixed, *others = texts(problems, env)
    assert fixed["fixed"]
    assert RULE in fixed["text"]
    assert all(opening(problem.question, False)[0].content.startswith(fixed["text"]) for problem in problems)
    assert not any(row.get("fixed") or RULE in row["text"] for row in others)
    assert len(others) == 3 * len(problems)


def test_if_attempts_are_carried_out_the_tokenizer_s_texts_contain_the_feedback_that_tells_their_outcomes() -> None:
    env = answer_env(name="textcraft").make()
    assert isinstance(env, Plans)
    (problem,) = env.problems({"demonstrations": 1}, seed=1)["demonstrations"]
    _, told = asyncio.run(env.carry_out(problem.answer, problem))
    assert "Crafted" in told
    assert feedback(0.0, problem.question, told=told) in [row["text"] for row in texts([problem], env)]


def test_user_files_are_divided_and_the_test_file_is_used_by_the_test_split_only(tmp_path: Path) -> None:
    files = own_files(tmp_path, train=20, test=8)
    counts: dict[str, Any] = {"demonstrations": 4, "train": 10, "dev": 5, "test": 7}
    made = splits(tmp_path, source="files", files=files, **counts)
    assert_disjoint_and_sized(made, counts)
    held_out = {problem.question for problem in load_split(Path(files["test"]), GSM8K)}
    assert {problem.question for problem in made["test"]} <= held_out
    assert not held_out & {problem.question for name in ("train", "dev", "demonstrations") for problem in made[name]}
    assert [p.id for p in made["train"]] != sorted(p.id for p in made["train"])  # not sorted by id


def test_a_single_file_is_divided_among_all_splits(tmp_path: Path) -> None:
    counts: dict[str, Any] = {"demonstrations": 4, "train": 10, "dev": 2, "test": 4}
    made = splits(tmp_path, source="files", files=own_files(tmp_path, test=20), **counts)
    assert_disjoint_and_sized(made, counts)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"test": 9}, r"rise\.tasks\.test: 9 problems are requested, but 8 of 8 are left; request fewer"),
        ({"train": 21}, r"rise\.tasks\.train: 21 problems are requested, but 18 of 20 are left"),
        ({"demonstrations": 9}, r"rise\.tasks\.demonstrations: 9 problems are requested, but 8 of 20 are left"),
    ],
)
def test_too_few_problems_are_reported_with_the_name_of_the_split(
    tmp_path: Path, counts: dict[str, int], said: str
) -> None:
    asked: dict[str, Any] = {"demonstrations": 4, "train": 10, "dev": 2, "test": 4, **counts}
    with pytest.raises(UserError, match=said):
        splits(tmp_path, source="files", files=own_files(tmp_path, train=20, test=8), **asked)


def test_a_problem_in_two_files_and_a_missing_test_file_are_refused(tmp_path: Path) -> None:
    files = own_files(tmp_path, train=6, test=3)
    with pytest.raises(UserError, match=r"source files needs a test file; name one under rise\.tasks\.files\.test"):
        splits(tmp_path, source="files", files={"train": files["train"]}, demonstrations=1, train=1, dev=1, test=1)
    text = Path(files["test"]).read_text()
    Path(files["train"]).write_text(text + Path(files["train"]).read_text())
    with pytest.raises(UserError, match=r"is in both (test and|\w+ and)"):
        splits(tmp_path, source="files", files=files, demonstrations=2, train=5, dev=2, test=3)


def questions(file: Path, field: str) -> set[str]:
    return {row[field] for _, row in read_rows(file)}


def assert_official_test_split_is_kept(made: dict, mirror: Path) -> None:
    """The test split has the problems of GSM8K's test file only, and the others those of its training file only."""
    train, test = (questions(mirror / f"gsm8k/{name}.jsonl", "question") for name in ("train", "test"))
    assert {problem.question for problem in made["test"]} <= test
    assert {problem.question for name in SPLITS if name != "test" for problem in made[name]} <= train - test


def declare(folder: Path, **sources: list[Path]) -> None:
    """Declare the files, which lie in ``folder``/mirror, as those of data sources."""
    declared = {
        name: {
            "about": "a small file",
            "licence": "MIT",
            "files": [{"path": f"{name}/{file.name}", "sha256": sha256_of(file)} for file in files],
        }
        for name, files in sources.items()
    }
    (folder / SOURCES).parent.mkdir()
    (folder / SOURCES).write_text(json.dumps(declared))  # JSON is YAML


def test_gsm8k_keeps_its_official_test_split_and_math_is_divided_from_its_test_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    for name in ("gsm8k", "math"):
        (mirror / name).mkdir(parents=True)
    files = own_files(mirror / "gsm8k", train=20, test=8)
    rows = [{"problem": f"What is {n} + 2?", "solution": f"It is \\boxed{{{n + 2}}}."} for n in range(20)]
    write_rows(mirror / "math/test.jsonl", rows)
    declare(tmp_path, gsm8k=[*map(Path, files.values())], math=[mirror / "math/test.jsonl"])
    monkeypatch.chdir(tmp_path)
    counts: dict[str, Any] = {"demonstrations": 4, "train": 14, "dev": 2, "test": 8}
    made = splits(tmp_path, source="gsm8k", mirror=mirror, **counts)
    assert_disjoint_and_sized(made, counts)
    assert_official_test_split_is_kept(made, mirror)
    counts = {"demonstrations": 4, "train": 10, "dev": 2, "test": 4}
    made = splits(tmp_path, source="math", mirror=mirror, env=MATH, **counts)
    assert_disjoint_and_sized(made, counts)
    assert {problem.question for name in SPLITS for problem in made[name]} == {row["problem"] for row in rows}


def test_real_gsm8k_keeps_its_official_test_split(tmp_path: Path) -> None:
    counts = {"demonstrations": 3000, "train": 4000, "dev": 473, "test": 1319}
    mirror = real_sources("gsm8k")
    made = splits(tmp_path, source="gsm8k", mirror=mirror, **counts)
    assert_disjoint_and_sized(made, counts)
    assert_official_test_split_is_kept(made, mirror)


def test_the_real_test_file_of_math_is_divided_among_all_splits_and_split_files_round_trip(tmp_path: Path) -> None:
    counts = {"demonstrations": 100, "train": 300, "dev": 100, "test": 500}
    mirror = real_sources("math")
    made = splits(tmp_path, source="math", mirror=mirror, env=MATH, **counts)
    assert_disjoint_and_sized(made, counts)
    given = questions(mirror / "math/test.jsonl", "problem")
    assert {problem.question for name in SPLITS for problem in made[name]} == given
    write_rows(tmp_path / "m.jsonl", [to_row(problem, MATH) for problem in made["test"]])
    assert load_split(tmp_path / "m.jsonl", MATH) == made["test"]
