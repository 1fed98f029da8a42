"""A whole method on one environment, at smoke size: every stage from the data to the report, in forked processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.pipeline.workbench import Forks, copy_code, write_params

FIRST = {"rise": "iter1", "spin": "iter0"}
CONTROLS = {"rise": ("more_sft", "single_turn", "unweighted"), "spin": ("more_sft",)}
LATER = {"rise": ("iter2",), "spin": ("iter1",)}
TRAIN = {"epochs": 1, "batch_size": 8, "save_steps": 99, "logging_steps": 9, "row_tokens": 1024, "max_length": 1024,
         "launcher": {"kind": "single", "processes": 1}}  # fmt: skip


def overlay(method: str, env: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The smallest run of a method with one iteration and no control."""
    name = FIRST[method]
    iterations: dict[str, Any] = dict.fromkeys(LATER[method])
    rows = dict.fromkeys((*LATER[method], *CONTROLS[method]))
    section: dict[str, Any] = {
        "env": dict(env),
        "rows": {**rows, "base": {"train": TRAIN}, name: {"train": TRAIN}},
        "iterations": iterations,
    }
    if method == "rise":
        section["tasks"] = {"demonstrations": 8, "train": 4, "dev": 1, "test": 3}
        section["engines"] = {"student": {"context": 2048}}
        section["iterations"][name] = {"generate": {"tasks": 4, "max_tokens": 12}}
        section["evaluate"] = {"max_turns": 2, "parallel_samples": 2, "max_tokens": 12}
    else:
        section["tasks"] = {"train": 8, "dev": 1, "test": 3}
        section["engines"] = {"policy": {"context": 2048}}
        section["iterations"][name] = {"generate": {"end": 4, "max_turns": 2, "max_tokens": 12}}
        section["evaluate"] = {"max_turns": 2, "max_tokens": 12}
    params = {method: section, "base": {method: {"arch": {"positions": 2048}}}}
    _lay(params[method], more)
    return params


def play_cell(forks: Forks, folder: Path, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Run every stage there; the summary."""
    copy_code(folder)
    write_params(folder, params)
    name = FIRST[method]
    stages = [("data", ""), ("base", method), ("finetune", "base"), ("evaluate", "base"), ("generate", name)]
    stages += [("convert", name), ("finetune", name), ("evaluate", name), ("report", "")]
    for stage, item in stages:
        ran = forks.run(folder, stage if stage == "base" else f"{method}.{stage}", item)
        assert ran.code == 0, ran.stderr
    summary: dict[str, Any] = json.loads((folder / f"results/summary/{method}.json").read_text())
    return summary


def _lay(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(key), dict):
            _lay(under[key], value)
        else:
            under[key] = value
