"""Methods, rows and metrics in words, as legends and tables say them: ``rise``, ``iter2`` is "RISE, iteration 2"."""

from __future__ import annotations

import re

METHOD_NAMES = {"rise": "RISE", "agent_r": "Agent-R", "reflect_rl": "Reflect-RL", "spin": "SPIN"}

_CAPITALS = {"sft": "SFT", "rl": "RL", "dpo": "DPO"}
_ROWS = {"base": "base", "chance": "chance", "oracle": "oracle", "policy": "SFT only"}


def method_name(method: str) -> str:
    """``agent_r`` -> "Agent-R"; a method that has no name of its own here keeps its key."""
    return METHOD_NAMES.get(method, method)


def row_name(method: str, row: str) -> str:
    """``rise``, ``iter2`` -> "RISE, iteration 2"; ``more_sft`` -> "more SFT"."""
    name = method_name(method)
    if found := re.fullmatch(r"iter(\d+)", row):
        return f"{name}, iteration {found[1]}"
    if row in (method, name):
        return name
    return _ROWS.get(row) or " ".join(_CAPITALS.get(word, word) for word in row.split("_"))


def metric_name(metric: str) -> str:
    """``m1@t5`` stays; ``invalid_actions`` -> "invalid actions"."""
    return {"em": "exact match", "f1": "F1"}.get(metric, metric.replace("_", " "))
