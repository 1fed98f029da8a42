"""A whole method on one environment, at smoke size: every stage from data to report, in forked processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.pipeline.workbench import Forks, copy_code, write_params

STAGES = {
    "rise": "data base finetune@base evaluate@base generate@iter1 convert@iter1 finetune@iter1 evaluate@iter1 report",
    "agent_r": "data base finetune@base beginnings generate@iter1 convert@iter1 finetune@iter1 evaluate@base "
    "evaluate@iter1 report",
    "reflect_rl": "data generate convert base finetune@reflector finetune@policy reinforce@reflect_rl "
    "evaluate@reflect_rl report",
    "spin": "data base finetune@base evaluate@base generate@iter0 convert@iter0 finetune@iter0 evaluate@iter0 report",
}
"""The smallest run of a method: one iteration and no control."""
TRAIN = {"epochs": 1, "batch_size": 8, "save_steps": 99, "logging_steps": 9, "row_tokens": 2048, "max_length": 2048,
         "launcher": {"kind": "single", "processes": 1}}  # fmt: skip
TAXI = {"generate": {"levels": ["full"]}, "evaluate": {"levels": ["full"]}}
SLIPS = {"taxi": 0.1, "gymnasium:Taxi-v4": 0.1, "alfworld": 0.15, "autoexplore": 0.2}
"""Error rate of the expert that searches Agent-R's trees, so that some episodes succeed and some fail; default 0.4."""


def overlay(method: str, env: Mapping[str, Any] | list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The params of the smallest run; ``more`` is merged over the method's section."""
    made = {"rise": _rise, "agent_r": _agent_r, "reflect_rl": _reflect_rl, "spin": _spin}[method]
    section = made(env["name"] if isinstance(env, Mapping) else "mixture")
    section["env"] = env
    params = {method: section, "base": {method: {"arch": {"positions": 2048}}}}
    _lay(section, more)
    return params


def _rise(name: str) -> dict[str, Any]:
    return {
        "tasks": {"demonstrations": 8, "train": 4, "dev": 1, "test": 3},
        "engines": {"student": {"context": 2048}},
        "rows": {**dict.fromkeys(("iter2", "more_sft", "single_turn", "unweighted")),
                 "base": {"train": TRAIN}, "iter1": {"train": TRAIN}},
        "iterations": {"iter1": {"generate": {"tasks": 4, "max_tokens": 12}}, "iter2": None},
        "evaluate": {"max_turns": 2, "parallel_samples": 2, "max_tokens": 12},
    }  # fmt: skip


def _agent_r(name: str) -> dict[str, Any]:
    search = {"engine": "expert", "tasks": 3, "n_gen": 2, "dives": 4, "max_depth": 20 if name in SLIPS else 8}
    return {
        "tasks": {"demonstrations": 4, "layouts": 1, "judge_examples": 2, "train": 3, "dev": 0, "test": 2},
        "engines": {"actor": {"context": 2048}, "expert": {"error_rate": SLIPS.get(name, 0.4)}},
        "rows": {"base": {"train": TRAIN}, "iter1": {"train": TRAIN}, "iter2": None},
        "iterations": {
            "iter1": {"generate": search, "convert": {"judge_max_tokens": 4, "max_pairs_per_tree": 1}},
            "iter2": None,
        },
        "evaluate": {"max_turns": 2, "max_tokens": 8, "revision": False},
    }


def _reflect_rl(name: str) -> dict[str, Any]:
    rl = {"max_steps": 1, "episodes": 2, "replay_episodes": 1, "max_tokens": 4, "curriculum": False, "row_tokens": 1024}
    section: dict[str, Any] = {
        "tasks": {"train": 4, "dev": 1, "test": 2},
        "engines": {key: {"context": 1024} for key in ("policy", "reflector")},
        "generate": {"tasks": 2, "negative_tasks": 2, "negatives": 1, "max_turns": 30, "levels": []},
        "models": {"reflector": {"train": TRAIN}, "policy": {"train": TRAIN}, "plain": None, "more_sft": None},
        "iterations": {"reflect_rl": {"rl": rl}},
        "rows": {"policy": None, "more_sft": None},
        "agents": None,
        "evaluate": {"levels": [], "eval_reps": 1, "max_tokens": 4},
    }
    if name == "taxi":
        _lay(section, TAXI)
    return section


def _spin(name: str) -> dict[str, Any]:
    return {
        "tasks": {"train": 8, "dev": 1, "test": 3},
        "engines": {"policy": {"context": 2048}},
        "rows": {"iter1": None, "more_sft": None, "base": {"train": TRAIN}, "iter0": {"train": TRAIN}},
        "iterations": {"iter0": {"generate": {"end": 4, "max_turns": 2, "max_tokens": 12}}, "iter1": None},
        "evaluate": {"max_turns": 2, "max_tokens": 12},
    }


def play_cell(
    forks: Forks, folder: Path, method: str, params: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run every stage in ``folder`` and return the summary. A reused folder keeps the cached analysis of its code."""
    if not (folder / "selfimprove").exists():
        copy_code(folder)
    for left in (f"data/{method}", f"models/{method}", "results", ".scratch/stages"):
        shutil.rmtree(folder / left, ignore_errors=True)
    write_params(folder, params)
    for stage in STAGES[method].split():
        name, _, item = stage.partition("@")
        script, argument = (name, method) if name == "base" else (f"{method}.{name}", item)
        ran = forks.run(folder, script, argument, env=dict(env or {}))
        assert ran.code == 0, ran.stderr
    summary: dict[str, Any] = json.loads((folder / f"results/summary/{method}.json").read_text())
    return summary


def _lay(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(key), dict):
            _lay(under[key], value)
        else:
            under[key] = value
