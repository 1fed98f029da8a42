"""The arena: methods tested on the same tasks, in one table, each compared with its own base and with the others.

Profiles ``arena-…`` give all methods the same environment, split, starting model and number of training tokens;
``make repro`` and ``make report`` then end with this table. It is shown whenever two methods share their test tasks.

A method's last row is compared with its warm start, with more SFT on the same number of tokens, and with the other
methods' last rows, all paired by task. Metrics are 1 for a solved task, and each method plays in its own way:

==========  =========================================================================================================
RISE        the headline metric of its own table: the majority of the attempts of one run without an oracle; an attempt
            is executed from a reset
Agent-R     success: the episode's last score is the maximum
Reflect-RL  success, with the reflection model; it chooses among the actions that make sense in the state
SPIN        em: the episode's reward is 1
==========  =========================================================================================================
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from rich import box
from rich.table import Table

from selfimprove.apps.report.schema import Part, read_timing
from selfimprove.apps.report.words import figure_text, method_name, signed_text
from selfimprove.core.errors import UserError, fault
from selfimprove.core.outcomes import Outcome, paired_difference
from selfimprove.core.records import mean_and_error, read_jsonl, read_number
from selfimprove.core.yaml import read_yaml
from selfimprove.methods.rows import NONE, START
from selfimprove.methods.summary import headline
from selfimprove.models.base import BaseParams
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import value_at

MORE = "more_sft"
METRICS = {"agent_r": "success", "reflect_rl": "success", "spin": "em"}
"""The metric that is 1 for a solved task; RISE's is its headline metric."""
COLLECTED = {"rise": "samples", "agent_r": "leaves", "spin": "em"}
"""The count of collected episodes in an iteration's generate.json; Reflect-RL's is in the row's train.json."""
ATTEMPTS = {"rise": {"first": "m1@t1", "any": "p1@{turn}"}}
"""For methods with several attempts per task: the metric of the first attempt alone, comparable to the other methods'
single attempt, and the share of tasks in which any attempt is right; ``turn`` is the headline metric's."""

P = TypeVar("P", bound=BaseModel)


class _Iteration(Part):
    """An iteration in params.yaml."""

    init: str
    reflector: str = NONE


class _Section(Part):
    """A method's section in params.yaml."""

    iterations: dict[str, _Iteration]


Arena = dict[str, Any]
"""The content of the tables, as JSON: env, tasks, same_start, methods (name -> measurements, or the reason why they are
``missing``), between (``a-b`` -> difference of the last rows)."""


def arena(root: Path, summaries: Mapping[str, Any]) -> Arena | None:
    """The comparison of a run's methods; None if no two of them were tested on the same tasks.

    Args:
        root: the run's folder.
        summaries: method -> its summary, for the methods that have one.

    Raises:
        UserError: a file or params.yaml lacks a number or a key that the comparison needs; OSError: a file is missing.
    """
    metrics = {method: METRICS.get(method) or headline(summary) for method, summary in summaries.items()}
    solved = {method: _solved(root, method, one["last"], metrics[method]) for method, one in summaries.items()}
    shared = _largest_group(solved)
    if len(shared) < 2:
        return None
    params = read_yaml(root / "params.yaml")
    first = solved[shared[0]]
    methods: dict[str, Any] = {}
    for method in METHODS:
        if method in shared:
            methods[method] = _measured(root, method, summaries[method], metrics[method], params)
        elif method in solved:
            methods[method] = {"missing": f"was tested on other tasks than {_name(first)}'s {len(first)}"}
        else:
            methods[method] = {"missing": f"no results yet; run `make repro METHOD={method}`"}
    between = {f"{a}-{b}": paired_difference(solved[a], solved[b]) for a, b in combinations(shared, 2)}
    return {
        "env": _name(first),
        "tasks": len(first),
        "same_start": same_start(params, shared),
        "methods": methods,
        "between": between,
    }


def same_start(params: Mapping[str, Any], methods: Sequence[str]) -> bool:
    """Whether methods start from the same named model; from scratch, each method has its own tokenizer."""
    bases = {method: _section(params, f"base.{method}", BaseParams) for method in methods}
    starts = {(one.model, one.revision, one.adapter_of) if one.model else method for method, one in bases.items()}
    return len(starts) == 1


def _section(params: Mapping[str, Any], key: str, kind: type[P]) -> P:
    """The part of params.yaml at a dotted key, which the page reads even if no stage accepts it.

    Raises:
        UserError: it is missing or not valid.
    """
    try:
        return kind.model_validate(value_at(params, key))
    except ValidationError as error:
        raise UserError(f"params.yaml, {key}: {fault(error)}; correct it.") from None


def _largest_group(solved: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The largest group of methods that have the same tasks."""
    groups = [[other for other in solved if solved[other].keys() == tasks.keys()] for tasks in solved.values() if tasks]
    return max(groups, key=len, default=[])


def _name(solved: Mapping[str, float]) -> str:
    """The environment's name, taken from a task id: ``textcraft-867``."""
    return next(iter(solved)).rpartition("-")[0]


def _solved(root: Path, method: str, row: str, metric: str) -> dict[str, float]:
    """Task -> the metric in one row; {} if the row was not evaluated."""
    file = root / "results" / method / row / "outcomes.jsonl"
    rows = read_jsonl(file, Outcome) if file.is_file() else []
    return {one.id: one.values[metric] for one in rows if metric in one.values}


def _measured(
    root: Path, method: str, summary: Mapping[str, Any], metric: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """A method's part: metrics of its three rows, their differences, and the cost of the last row."""
    last, order = summary["last"], summary["order"]
    iterations = _section(params, method, _Section).iterations
    lineage = _lineage(iterations, last)
    base = iterations[lineage[0]].init  # the warm start: base, or the policy that reinforcement starts from
    rows = {"base": base, "more": MORE, "last": last}
    solved = {kind: _solved(root, method, row, metric) for kind, row in rows.items() if row in order}
    warm = [base]
    if method == "reflect_rl" and iterations[last].reflector != NONE:
        warm.append(iterations[last].reflector)
    files = {row: root / "results" / method / row / "train.json" for row in [*warm, *lineage]}
    tokens = {row: 0 if row == START else read_number(file, "real_tokens") for row, file in files.items()}
    found: dict[str, Any] = {
        "metric": metric,
        "rows": rows,
        "values": {kind: mean_and_error(values.values()) for kind, values in solved.items()},
        "minus": {kind: paired_difference(solved["last"], values) for kind, values in solved.items() if kind != "last"},
        "warm_tokens": sum(tokens[row] for row in warm),
        "tokens": sum(tokens[row] for row in lineage),
        "episodes": sum(_episodes(root, method, row) for row in lineage),
    }
    for which, name in ATTEMPTS.get(method, {}).items():
        named = name.format(turn=metric.partition("@")[2])
        attempts = {kind: _solved(root, method, row, named) for kind, row in rows.items() if row in order}
        found[which] = {kind: mean_and_error(values.values()) for kind, values in attempts.items()}
    if MORE in solved:
        found["more_tokens"] = summary["rows"][MORE]["training_tokens"]
    return found | _took(root, method, warm, lineage)


def _lineage(iterations: Mapping[str, _Iteration], last: str) -> list[str]:
    """The last iteration and the iterations it builds on, oldest first.

    Raises:
        UserError: ``last`` is no iteration, or one builds on itself.
    """
    chain = [last]
    while chain[0] in iterations and iterations[chain[0]].init not in chain:
        if (init := iterations[chain[0]].init) not in iterations:
            return chain
        chain.insert(0, init)
    raise UserError(f"params.yaml: {chain[0]!r} is no iteration, or builds on itself; correct the iterations.")


def _episodes(root: Path, method: str, row: str) -> int:
    """Episodes played to learn from in an iteration: attempts, leaves of trees, episodes."""
    folder = root / "results" / method / row
    if method == "reflect_rl":
        return int(read_number(folder / "train.json", "episodes"))
    return int(read_number(folder / "generate.json", COLLECTED[method]))


def _took(root: Path, method: str, warm: Sequence[str], lineage: Sequence[str]) -> dict[str, Any]:
    """Seconds of the stages that produced the last row, and tokens generated by them; None if any of these stages was
    restored from the cache instead of run."""
    steps = ["generate", "convert", "finetune"] if method != "reflect_rl" else ["reinforce"]
    names = [f"{method}-finetune@{row}" for row in warm]
    names += [f"{method}-{step}@{row}" for row in lineage for step in steps]
    names += [f"{method}-generate", f"{method}-convert"] if method == "reflect_rl" else []
    ran = [read_timing(root, name) for name in names]
    if not all("seconds" in one for one in ran):
        return {"seconds": None, "generated": None}
    written = [value for one in ran for key, value in one.items() if key.endswith("_generated_tokens")]
    return {"seconds": round(sum(one["seconds"] for one in ran), 1), "generated": int(sum(written))}


# As tables

HEADS = (
    "method", "metric", "base", "more SFT", "last", "Δ base", "Δ more SFT", "warm start", "tokens", "episodes",
    "generated", "seconds",
)  # fmt: skip
NOTE = (
    "Δ: the last row minus the base, and minus more SFT with the same number of training tokens, paired by task; "
    "*: more than three standard errors from 0. warm start, tokens: training tokens before and during the method; "
    "episodes: episodes collected for training; generated, seconds: tokens generated by the stages that built the last "
    "row, and their duration (-: not recorded)"
)


def rows_of(found: Arena) -> list[list[str]]:
    """The cells under ``HEADS``; for a missing method, its name and the reason."""
    rows = []
    for method, one in found["methods"].items():
        if "missing" in one:
            rows.append([method_name(method), one["missing"]])
            continue
        values, minus, metric = one["values"], one["minus"], one["metric"]
        cells = [figure_text(values[kind], metric) if kind in values else "-" for kind in ("base", "more", "last")]
        cells += [signed_text(minus[kind], metric).strip() if kind in minus else "-" for kind in ("base", "more")]
        cells += [f"{one[key] / 1000:.0f}k" for key in ("warm_tokens", "tokens")]
        cells.append(f"{one['episodes']:.0f}")
        cells.append("-" if one["generated"] is None else f"{one['generated'] / 1000:.0f}k")
        cells.append("-" if one["seconds"] is None else f"{one['seconds']:.0f}")
        rows.append([method_name(method), metric, *cells])
    return rows


def between_of(found: Arena) -> list[list[str]]:
    """A matrix of each method's last row minus each other method's; the first row contains the names."""
    names = [method for method, one in found["methods"].items() if "missing" not in one]
    lines = [["", *(f"− {method_name(other)}" for other in names)]]
    for one in names:
        cells = []
        for other in names:
            if f"{one}-{other}" in found["between"]:
                cells.append(signed_text(found["between"][f"{one}-{other}"], "").strip())
            elif f"{other}-{one}" in found["between"]:
                there = found["between"][f"{other}-{one}"]
                cells.append(signed_text({**there, "mean": -there["mean"]}, "").strip())
            else:
                cells.append("")
        lines.append([method_name(one), *cells])
    return lines


def attempts_of(found: Arena) -> list[str]:
    """A sentence for each method with several attempts: results of its first attempts alone, and of any attempt."""
    return [
        f"{method_name(method)}: the first attempt alone is correct in {_three(one['first'])}; at least one attempt in "
        f"{_three(one['any'])}."
        for method, one in found["methods"].items()
        if "first" in one
    ]


def _three(values: Mapping[str, Any]) -> str:
    words = {"base": "base", "more": "more SFT", "last": "last"}
    return ", ".join(f"{figure_text(value, '')} ({words[kind]})" for kind, value in values.items())


def basis(found: Arena) -> str:
    """What all rows have in common, in a sentence."""
    start = "one model and one tokenizer" if found["same_start"] else "different models or tokenizers"
    return f"{found['env']}, {found['tasks']} test tasks, mean ± standard error; all start from {start}"


def arena_tables(found: Arena) -> list[Table]:
    """The comparison, and the differences between methods."""
    title = f"arena: {basis(found)}"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for place, head in enumerate(HEADS):
        table.add_column(head, no_wrap=True, justify="left" if place < 2 else "right")
    missing = []
    for row in rows_of(found):
        if len(row) == len(HEADS):
            table.add_row(*row)
        else:
            missing.append(": ".join(row))
    table.caption = "\n".join([NOTE, *attempts_of(found), *missing])
    names, *lines = between_of(found)
    title = "arena: last row of each method minus the last row of each other method, paired by task"
    matrix = Table(title=title, box=box.SIMPLE)
    for place, cell in enumerate(names):
        matrix.add_column(cell, no_wrap=True, justify="right" if place else "left")
    for cells in lines:
        matrix.add_row(*cells)
    return [table, matrix]
