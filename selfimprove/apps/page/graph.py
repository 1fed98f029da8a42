"""The run's stages according to DVC: their inputs, outputs and metrics, and the stages that have not run yet."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from selfimprove.apps.page.run import Run
from selfimprove.apps.report.charts import COLOURS, SCHEMA, Spec, theme
from selfimprove.apps.report.schema import Trained, read_timing
from selfimprove.apps.report.words import method_name, row_name
from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import of_method
from selfimprove.pipeline.verify import outputs_of

CODE = "data/code/"
"""Folder of code hashes: every stage has one as an input, but they are of no interest to readers."""

STEP_X, STEP_Y = 62, 46


@dataclass
class StageShown:
    """One stage. ``after``: its direct dependencies in the transitive reduction of the graph; ``state``: ``done`` if
    all outputs exist, else ``missing``.
    """

    name: str
    what: str
    method: str
    kind: str
    row: str
    needs: list[str]
    after: list[str]
    inputs: list[str]
    outputs: list[dict[str, Any]]
    params: list[str]
    state: str
    column: int = 0
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Id of its entry in the page."""
        return "stage-" + "".join(one if one.isalnum() else "-" for one in self.name)


_ASK = """
import json, sys
import networkx as nx
from dvc.repo import Repo
index = Repo(sys.argv[1]).index
graph = index.graph
short = nx.transitive_reduction(graph)
depth, found = {}, []
for stage in nx.lexicographical_topological_sort(graph.reverse(), key=lambda one: one.addressing):
    needs = sorted(one.addressing for one in graph.successors(stage))
    depth[stage.addressing] = 1 + max((depth[one] for one in needs), default=-1)
    found.append({
        "name": stage.addressing, "what": stage.desc or "", "needs": needs,
        "after": sorted(one.addressing for one in short.successors(stage)), "column": depth[stage.addressing],
        "inputs": [dep.def_path for dep in stage.deps if dep.def_path],
        "params": sorted(str(key) for dep in stage.deps for key in (getattr(dep, "params", None) or [])),
        "outputs": [{"path": out.def_path, "kind": "metric" if out.metric else "plot" if out.plot else "output"}
                    for out in stage.outs],
    })
print(json.dumps(found))
"""
"""Run in a subprocess: importing DVC takes a second and changes logging and signal handlers."""


def stages(run: Run) -> list[StageShown]:
    """All stages, in topological order; [] if there is no graph, or DVC cannot read it, which is reported."""
    if not (run.root / "dvc.yaml").is_file():
        return []
    command = [sys.executable, "-c", _ASK, str(run.root.resolve())]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=run.root, env={**os.environ, "DVC_NO_ANALYTICS": "1"}
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no error message"]
        run.tell(f"DVC cannot read the graph of {run.root}: {last[0][:300]}")
        return []
    hashes = locked(run)
    found = []
    for one in json.loads(done.stdout):
        kind, row = _kind_and_row(one["name"])
        outputs = [
            {**out, "hash": hashes.get(out["path"], "") if there else "", "there": there}
            for out in one["outputs"]
            for there in [(run.root / out["path"]).exists()]
        ]
        method = next((name for name in METHODS if of_method(one["name"], name)), "")
        found.append(
            StageShown(
                one["name"], one["what"], method, kind, row, one["needs"], one["after"],
                [path for path in one["inputs"] if not path.startswith(CODE)], outputs, one["params"],
                "done" if all(out["there"] for out in outputs) else "missing", one["column"],
                _timing(run, one["name"], outputs),
            )
        )  # fmt: skip
    return found


def locked(run: Run) -> dict[str, str]:
    """Output -> its hash in ``dvc.lock``."""
    path = run.root / "dvc.lock"
    try:
        return {str(out.path): out.md5 for out in outputs_of(read_yaml(path))} if path.exists() else {}
    except (OSError, ValueError, UserError):
        run.tell("dvc.lock cannot be read; `git checkout dvc.lock` restores it.")
        return {}


def trained_on(found: list[StageShown]) -> dict[str, str]:
    """File of training examples -> the first row that was trained on it."""
    rows: dict[str, str] = {}
    for stage in found:
        if any(out["path"] == f"models/{stage.method}/{stage.row}" for out in stage.outputs):
            for path in stage.inputs:
                if "/train/" in path and path.startswith("data/"):
                    rows.setdefault(path, stage.row)
    return rows


def graph_charts(found: list[StageShown]) -> dict[str, Spec]:
    """A chart of each method's stages: one lane per row, from left to right; each node links to the stage's entry."""
    return {method: chart for method in METHODS if (chart := _chart(method, found)) is not None}


def _chart(method: str, found: list[StageShown]) -> Spec | None:
    mine = {stage.name: stage for stage in found if stage.method == method}
    if not mine:
        return None
    columns = {depth: place for place, depth in enumerate(sorted({stage.column for stage in mine.values()}))}
    lanes = list(dict.fromkeys(stage.row for stage in mine.values()))
    place = {name: (columns[stage.column], stage.row) for name, stage in mine.items()}
    names = {row: row_name(method, row) if row else "shared" for row in lanes}
    nodes = [
        {"x": place[name][0], "row": names[stage.row], "kind": stage.kind, "state": stage.state,
         "stage": name, "what": stage.what, "href": f"#{stage.anchor}"}
        for name, stage in mine.items()
    ]  # fmt: skip
    edges = [
        {"x": place[need][0], "row": names[place[need][1]], "x2": place[name][0], "row2": names[place[name][1]]}
        for name, stage in mine.items()
        for need in stage.after
        if need in mine
    ]
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-0.5, len(columns) - 0.5]}}
    y = {
        "field": "row", "type": "nominal", "sort": [names[row] for row in lanes], "title": None,
        "scale": {"domain": [names[row] for row in lanes]},
        "axis": {"domain": False, "ticks": False, "grid": False, "labelLimit": 200},
    }  # fmt: skip
    tips = [{"field": name, "type": "nominal"} for name in ("stage", "what", "state")]
    colour = {
        "field": "state", "type": "nominal", "title": None, "legend": {"orient": "top"},
        "scale": {"domain": ["done", "missing"], "range": [COLOURS[0], COLOURS[1]]},
    }  # fmt: skip
    shape = {**colour, "scale": {"domain": ["done", "missing"], "range": ["circle", "diamond"]}}
    point = {"type": "point", "filled": True, "size": 150, "opacity": 1, "cursor": "pointer"}
    text = {"type": "text", "dy": -13, "fontSize": 10}
    return {
        "$schema": SCHEMA, "config": theme(), "title": f"{method_name(method)}: {len(mine)} stages",
        "width": max(STEP_X * len(columns), 300), "height": STEP_Y * len(lanes),
        "layer": [
            {"data": {"values": edges}, "mark": {"type": "rule", "opacity": 0.35, "strokeWidth": 1.2},
             "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "row2"}}},
            {"data": {"values": nodes}, "mark": point,
             "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "href": {"field": "href"}, "tooltip": tips}},
            {"data": {"values": nodes}, "mark": text,
             "encoding": {"x": x, "y": y, "text": {"field": "kind"}}},
        ],
    }  # fmt: skip


def _kind_and_row(name: str) -> tuple[str, str]:
    """``rise-finetune@more_sft`` -> (finetune, more_sft)."""
    stage, _, item = name.partition("@")
    method, _, kind = stage.partition("-")
    if not kind:
        return method, "" if method in METHODS or item in METHODS else item
    return kind, item


def _timing(run: Run, name: str, outputs: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds and tokens of the stage's last run; {} if its outputs were restored from the run cache."""
    found = read_timing(run.root, name)
    if not found:
        return {}
    trained = [run.json(run.root / out["path"], Trained) for out in outputs if out["path"].endswith("train.json")]
    if tokens := sum(one.get("real_tokens", 0) for one in trained):
        found["tokens_read_in_training"] = tokens
    return found


def missing(found: list[StageShown]) -> list[tuple[str, list[str]]]:
    """(stage, missing outputs) of an unfinished run."""
    return [
        (stage.name, [out["path"] for out in stage.outputs if not out["there"]])
        for stage in found
        if stage.state == "missing"
    ]
