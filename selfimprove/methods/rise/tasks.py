"""RISE's problems: demonstrations for the first SFT, a training split to collect on, a dev and a test split.

The splits are frozen, hashed lists of problems with disjoint content (docs/rise.md, R11; ``envs/problems.py``).
"""

import asyncio
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any

from selfimprove.core.records import Example, Message
from selfimprove.envs.interface import AnswerEnv, CarriesOut, Problem
from selfimprove.envs.interface import to_row as to_row  # public names of this module (docs/reference.md)
from selfimprove.envs.problems import load_split as load_split
from selfimprove.envs.problems import problem_splits
from selfimprove.methods.rise.params import TaskParams
from selfimprove.methods.rise.prompts import feedback, opening

SPLITS = ("demonstrations", "train", "dev", "test")


def build_splits(
    tasks: TaskParams, env: AnswerEnv, *, seed: int, download: Path, mirror: Path | None
) -> dict[str, list[Problem]]:
    """The four splits.

    Raises:
        UserError: the source is unavailable or malformed, has too few problems, or its splits overlap.
    """
    return problem_splits(
        tasks.source,
        env,
        {name: getattr(tasks, name) for name in SPLITS},
        seed=seed,
        download=download,
        mirror=mirror,
        files=dict(tasks.files.items()) if tasks.files else None,
        difficulty={**dict.fromkeys(SPLITS, tasks.difficulty), "demonstrations": tasks.demonstration_difficulty},
        where="rise.tasks",
    )


def demonstrate(problems: Sequence[Problem], env: AnswerEnv, *, few_shot: bool) -> list[Example]:
    """Single-turn training examples of the gold solutions, with weight 1."""
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


def texts(problems: Sequence[Problem], env: AnswerEnv) -> list[dict[str, Any]]:
    """Training texts of the small tokenizer: each problem's question, its feedback on a wrong attempt, its solution.

    If the environment carries attempts out, the common start of its questions (the instruction) becomes one token.
    """
    asked = [opening(problem.question, few_shot=False)[-1].content for problem in problems]
    if not isinstance(env, CarriesOut):
        told: list[str | None] = [None] * len(problems)
        fixed = ""
    else:
        told = list(asyncio.run(_told(problems, env)))
        fixed = commonprefix(asked).rpartition("\n")[0] if len(asked) > 1 else ""  # noqa: RUF071
    return [
        *([{"text": fixed, "fixed": True}] if fixed else []),
        *(
            {"text": text.removeprefix(fixed)}
            for problem, question, happened in zip(problems, asked, told, strict=True)
            for text in (question, feedback(0.0, problem.question, told=happened), env.demonstration(problem))
        ),
    ]


async def _told(problems: Sequence[Problem], env: CarriesOut) -> list[str | None]:
    """The outcomes of the demonstrations, whose vocabulary is that of the feedback on attempts."""
    try:
        return [(await env.carry_out(problem.answer, problem))[1] for problem in problems]
    finally:
        await env.close()
