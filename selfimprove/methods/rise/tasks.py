"""Which problems RISE uses: demonstrations for the first SFT, a training split to collect on, a dev and a test split.

The splits are frozen lists of problems, hashed, disjoint by content (docs/rise.md, R11). Real data keeps the official
test split; MATH's training split is not public in a form that can be declared, so its profile divides the test file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message, read_rows
from selfimprove.core.seeds import rng
from selfimprove.core.sources import fetch
from selfimprove.envs.interface import AnswerEnv, CarriesOut, MakesProblems, Problem
from selfimprove.envs.interface import to_row as to_row
from selfimprove.methods.rise.params import TaskParams
from selfimprove.methods.rise.prompts import feedback, opening

SPLITS = ("demonstrations", "train", "dev", "test")


def build_splits(
    tasks: TaskParams, env: AnswerEnv, *, seed: int, download: Path, mirror: Path | None
) -> dict[str, list[Problem]]:
    """The four splits.

    Raises:
        UserError: the source can't be had or is malformed, holds too few problems, or overlaps.
    """
    wanted: dict[str, int] = {name: getattr(tasks, name) for name in SPLITS}
    splits: dict[str, list[Problem]]
    if tasks.source == "embedded":
        if not isinstance(env, MakesProblems):
            raise UserError(f"rise.tasks.source: {env.name} has no problems of its own; set files, and name them.")
        splits = env.problems(wanted, seed=seed, difficulty=_difficulty(tasks))
    else:
        splits = _divide(tasks, env, wanted, seed=seed, download=download, mirror=mirror)
    _check_disjoint(splits, "id" if tasks.source == "embedded" else "question")
    return splits


def split_hash(problems: Sequence[Problem]) -> str:
    """Names a split: its ids in order."""
    return blake2b("\n".join(problem.id for problem in problems).encode(), digest_size=16).hexdigest()


def demonstrate(problems: Sequence[Problem], env: AnswerEnv, *, few_shot: bool) -> list[Example]:
    """Single-turn training examples of the gold solutions, weight 1."""
    return [
        Example(
            id=f"demonstration_{index}",
            messages=[
                *opening(problem.question, few_shot),
                Message(role="assistant", content=env.demonstration(problem), weight=1.0),
            ],
            source=problem.id,
        )
        for index, problem in enumerate(problems)
    ]


def texts(problems: Sequence[Problem], env: AnswerEnv) -> list[dict[str, str]]:
    """Texts that the small tokenizer is trained on: each problem as it is asked, asked again, and solved."""
    told = asyncio.run(_told(problems, env)) if isinstance(env, CarriesOut) else [None] * len(problems)
    return [
        {"text": text}
        for problem, happened in zip(problems, told, strict=True)
        for text in (
            *(message.content for message in opening(problem.question, few_shot=False)),
            feedback(0.0, problem.question, told=happened),
            env.demonstration(problem),
        )
    ]


async def _told(problems: Sequence[Problem], env: CarriesOut) -> list[str | None]:
    """What the demonstrations lead to: the words of the feedback on attempts."""
    try:
        return [(await env.carry_out(problem.answer, problem))[1] for problem in problems]
    finally:
        await env.close()


def load_split(path: Path, env: AnswerEnv) -> list[Problem]:
    """Problems of a split file.

    Raises:
        UserError: missing, empty or malformed (names file and line).
    """
    return env.load(read_rows(path), path)


def _difficulty(tasks: TaskParams) -> dict[str, Any]:
    """How hard the problems of each split are, where the environment has a choice."""
    return {**dict.fromkeys(SPLITS, tasks.difficulty), "demonstrations": tasks.demonstration_difficulty}


def _divide(
    tasks: TaskParams,
    env: AnswerEnv,
    wanted: Mapping[str, int],
    *,
    seed: int,
    download: Path,
    mirror: Path | None,
) -> dict[str, list[Problem]]:
    files: dict[str, str] = dict((tasks.files or {}).items())
    if not files:
        files = {path.stem: str(path) for path in fetch(tasks.source, download, mirror=mirror)}
    loaded = {stem: load_split(Path(path), env) for stem, path in files.items()}
    for stem, problems in loaded.items():
        rng("panels", seed, tasks.source, stem).shuffle(problems)
    if "test" not in loaded:
        raise UserError(f"rise.tasks: source {tasks.source} needs a test file; name one under rise.tasks.files.test.")
    pools = {"test": loaded["test"], "rest": loaded.get("train", loaded["test"])}
    shared = "train" not in loaded
    splits = {"test": _take(pools["test"], wanted["test"], "test", 0)}
    start = wanted["test"] if shared else 0
    for name in ("dev", "train", "demonstrations"):
        splits[name] = _take(pools["rest"], wanted[name], name, start)
        start += wanted[name]
    return splits


def _take(pool: Sequence[Problem], count: int, name: str, start: int) -> list[Problem]:
    if start + count > len(pool):
        raise UserError(
            f"rise.tasks.{name}: {count} problems are asked for, {max(0, len(pool) - start)} are left of {len(pool)}; "
            "ask for fewer."
        )
    return list(pool[start : start + count])


def _check_disjoint(splits: Mapping[str, Sequence[Problem]], by: Literal["id", "question"]) -> None:
    """Refuse a problem that stands in two splits. Files are compared by their texts."""
    owner: dict[str, str] = {}
    for name, problems in splits.items():
        for problem in problems:
            other = owner.setdefault(getattr(problem, by), name)
            if other != name:
                raise UserError(
                    f"rise.tasks: problem {problem.id} is in both {other} and {name}; remove the duplicate."
                )
