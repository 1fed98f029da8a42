"""Display names of methods, rows and metrics for legends and tables (``rise``, ``iter2``: "RISE, iteration 2"), and
their values as text."""

import re
from collections.abc import Mapping

from selfimprove.core.outcomes import beyond

METHOD_NAMES = {"rise": "RISE", "agent_r": "Agent-R", "reflect_rl": "Reflect-RL", "spin": "SPIN"}

_CAPITALS = {"sft": "SFT", "rl": "RL", "dpo": "DPO"}
_METRICS = {"em": "exact match", "f1": "F1", "told_apart_fall": "told apart: decrease"}


def method_name(method: str) -> str:
    """``agent_r`` -> "Agent-R"; any other key stays as it is."""
    return METHOD_NAMES.get(method, method)


def row_name(method: str, row: str) -> str:
    """``rise``, ``iter2`` -> "RISE, iteration 2"; ``more_sft`` -> "more SFT"."""
    name = method_name(method)
    if found := re.fullmatch(r"iter(\d+)", row):
        return f"{name}, iteration {found[1]}"
    if row in (method, name):
        return name
    return " ".join(_CAPITALS.get(word, word) for word in row.split("_"))


def metric_name(metric: str) -> str:
    """``em`` -> "exact match", ``invalid_actions`` -> "invalid actions"; ``m1@t5`` stays."""
    return _METRICS.get(metric, metric.replace("_", " "))


def figure_text(figure: dict[str, float], column: str) -> str:
    """Mean ± standard error."""
    return f"{_short(figure['mean'], column)}±{_short(figure['se'], column)}"


def signed_text(figure: dict[str, float], column: str) -> str:
    """A difference ± its standard error; * marks one that is ``beyond`` the error."""
    mark = "*" if beyond(figure) else " "
    sign = "-" if figure["mean"] < 0 else "+"
    return f"{sign}{_short(abs(figure['mean']), column)}±{_short(figure['se'], column)}{mark}"


def rate_text(figure: Mapping[str, float] | None) -> str:
    """A rate; "-" without one, or without a chance of one: with an oracle, no attempt follows a right one."""
    return f"{figure['mean']:.2f}" if figure and figure["n"] else "-"


def percent_text(share: float) -> str:
    """The percentage with two significant digits, so that a non-zero share never shows as 0; "" for zero."""
    return f"{float(f'{100 * share:.2g}'):g} %" if share else ""


def _short(value: float, column: str) -> str:
    """A fraction as .123; a score, which ranges up to 100, as 12.3."""
    if column.endswith("score"):
        return f"{value:.1f}"
    size = f"{abs(value):.3f}".lstrip("0") if abs(value) < 0.9995 else f"{abs(value):.2f}"
    return f"-{size}" if value < 0 else size
