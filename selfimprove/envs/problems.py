"""Divides the problems of an ``AnswerEnv`` into disjoint splits: built-in problems, a data set, or user-supplied files.

Real data keep their official test split, except MATH: its training split is not public in a form that can be declared,
so all splits are drawn from its test file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows
from selfimprove.core.seeds import rng
from selfimprove.core.sources import fetch
from selfimprove.envs.interface import AnswerEnv, MakesProblems, Problem

Source = Literal["embedded", "gsm8k", "math", "files"]


def problem_splits(
    source: Source,
    env: AnswerEnv,
    counts: Mapping[str, int],
    *,
    seed: int,
    download: Path,
    mirror: Path | None,
    files: Mapping[str, str] | None = None,
    difficulty: Mapping[str, Any] | None = None,
    where: str = "tasks",
) -> dict[str, list[Problem]]:
    """``counts[split]`` problems for each of the splits demonstrations, train, dev and test.

    Args:
        files: for source ``files``: the file of the test split and, if different, that of the other splits.
        difficulty: per split, for built-in problems.
        where: the params that specify the counts, for messages.

    Raises:
        UserError: the source is unavailable or malformed, has too few problems, or its splits overlap.
    """
    if source == "embedded":
        if not isinstance(env, MakesProblems):
            raise UserError(f"{where}.source: {env.name} has no problems of its own; choose another source.")
        splits = env.problems(counts, seed=seed, difficulty=difficulty)
    else:
        paths = {path.stem: path for path in fetch(source, download, mirror=mirror)} if files is None else files
        splits = _divide(source, env, counts, {stem: Path(path) for stem, path in paths.items()}, seed, where)
    _check_disjoint(splits, "id" if source == "embedded" else "question", where)
    return splits


def load_split(path: Path, env: AnswerEnv) -> list[Problem]:
    """The problems in a split file.

    Raises:
        UserError: missing, empty or malformed (names file and line).
    """
    return env.load(read_rows(path), path)


def _divide(
    source: str, env: AnswerEnv, counts: Mapping[str, int], files: Mapping[str, Path], seed: int, where: str
) -> dict[str, list[Problem]]:
    loaded = {stem: load_split(path, env) for stem, path in files.items()}
    for stem, problems in loaded.items():
        rng("panels", seed, source, stem).shuffle(problems)
    if "test" not in loaded:
        raise UserError(f"{where}: source {source} needs a test file; name one under {where}.files.test.")
    shared = "train" not in loaded
    splits = {"test": _take(loaded["test"], counts["test"], f"{where}.test", 0)}
    start = counts["test"] if shared else 0
    for name in ("dev", "train", "demonstrations"):
        if name in counts:
            splits[name] = _take(loaded.get("train", loaded["test"]), counts[name], f"{where}.{name}", start)
            start += counts[name]
    return splits


def _take(pool: Sequence[Problem], count: int, key: str, start: int) -> list[Problem]:
    if start + count > len(pool):
        raise UserError(
            f"{key}: {count} problems are requested, but {max(0, len(pool) - start)} of {len(pool)} are left; request "
            "fewer."
        )
    return list(pool[start : start + count])


def _check_disjoint(splits: Mapping[str, Sequence[Problem]], by: Literal["id", "question"], where: str) -> None:
    """Refuse a problem that occurs in two splits. Problems from files are compared by their questions."""
    owner: dict[str, str] = {}
    for name, problems in splits.items():
        for problem in problems:
            other = owner.setdefault(getattr(problem, by), name)
            if other != name:
                raise UserError(f"{where}: problem {problem.id} is in both {other} and {name}; remove the duplicate.")
