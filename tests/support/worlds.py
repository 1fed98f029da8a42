"""Minimal settings for every environment in the registry: keys of an ``env`` section, and the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selfimprove.envs.params import EnvParams
from selfimprove.envs.registry import named
from tests.envs.autoexplore.conftest import FILES, plant
from tests.support.openenv_server import GAME, counting_server

ELSEWHERE = {"sciworld": "needs Java", "mixture": "has tests of its own"}
"""Environments that the light tests skip, and why; ``make test-backends-<name>`` plays them."""
NAMES = tuple(named(EnvParams))
HERE = tuple(name for name in NAMES if name not in ELSEWHERE)

TAXI = ["south", "north", "east", "west", "pick up", "drop off"]

TOWNS = [
    f"{stem}{end}"
    for stem in ("Arle", "Borrow", "Cando", "Dunmere", "Estley")
    for end in ("by", "ton", "wick", "mouth")
]


def keys_of(name: str, folder: Path, *, attempts: bool = False) -> dict[str, Any]:
    """The environment's keys; its files are written to ``folder``. ``attempts``: attempts as actions (Agent-R)."""
    keys: dict[str, Any] = {"name": name}
    if name == "webshop":
        keys |= {"products": 300}
    elif name == "autoexplore":
        keeper = 'class {town}:\n    """Keeps what was sent from {town}, a town."""\n\n    size = 1\n'
        more = {f"core/{town}.py": keeper.format(town=town) + "# how it is kept\n" * 9 for town in TOWNS}
        plant(folder / "repos/eventlib", FILES | more)
        keys |= {"repos": str(folder / "repos")}
    elif name == "gymnasium:…":
        keys = {"name": "gymnasium:Taxi-v4", "actions": TAXI, "score": 20}
    elif name == "openenv:…":
        keys = {"name": counting_server().name, **GAME}
    elif name == "encyclopedia":
        keys |= {"people": 60, "distractors": 0, "questions": 60}
    elif name == "hotpotqa":
        keys |= {"file": str(_questions(folder / "hotpotqa.jsonl"))}
    elif attempts:
        keys |= {"problems": problem_files(folder)["train"]} if name == "math" else {"count": 40}
    return keys


def _questions(path: Path) -> Path:
    """Questions about two paragraphs each, in HotpotQA's format."""
    rows = []
    for i, town in enumerate(TOWNS):
        poet = f"Poet of {town}"
        facts = [
            [town, [f"{town} is a town on the river R{i}.", " It is old."]],
            [poet, [f"{poet} was born in {town}."]],
        ]
        rows.append(
            {
                "question": f"On which river is the birthplace of {poet}?",
                "answer": f"R{i}",
                "context": facts,
                "supporting_facts": [[poet, 0], [town, 0]],
            }
        )
    return _written(path, rows)


def problem_files(folder: Path) -> dict[str, str]:
    """Files of problems in MATH's format, for training and for testing."""
    rows = [
        {"problem": f"What is ${a}x$ at $x = {b}$?", "solution": f"It is\n$\\boxed{{{a * b}}}$."}
        for a in range(2, 7)
        for b in range(3, 9)
    ]
    parts = {"train": rows[:22], "test": rows[22:]}
    return {name: str(_written(folder / f"math-{name}.jsonl", part)) for name, part in parts.items()}


def _written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
