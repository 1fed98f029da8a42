"""Agent-R's search trees for the page, with the revision trajectories built from them.

A tree of the page::

    {"i": "textcraft-580", "s": "solved", "q": "Crafting commands: …", "seed": "…",
     "nodes": [[parent, visits, value, reward, flags, action, reply, observation], …],
     "revisions": [{"good": [1, 4, 9], "bad": [1, 3], "verdicts": [[3, "Bad", "The environment refused it."]],
                    "cut": 3, "m": [messages as in episodes.py]}]}

``good`` and ``bad`` are paths as node numbers; ``cut`` is the last node of the bad path that the revision keeps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.apps.page.chunks import write_chunk, write_records
from selfimprove.apps.page.episodes import clip
from selfimprove.apps.page.lines import PairLog, Tree
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.words import row_name

TERMINAL, DONE, INVALID, DISASTER = 1, 2, 4, 8

Json = dict[str, Any]


def write_trees(run: Run, folder: Path) -> list[tuple[str, str]]:
    """Write every iteration's trees and their index; returns (key, label) of the iterations that have any trees."""
    sets: list[dict[str, Any]] = []
    for method in run.methods:
        for row in run.rows(method):
            path = run.root / "data" / method / row / "trees.jsonl"
            if not path.is_file():
                continue
            found: dict[str, list[Any]] = {"ids": [], "nodes": [], "best": [], "revisions": []}
            letters: list[str] = []

            def records(path: Path = path, found: Any = found, letters: Any = letters) -> Iterator[Json]:
                logs = _logs(run, path.parent / "train")
                for _, line, _ in run.records(path, "a search tree", Tree.model_validate):
                    tree = to_page(line, logs.get(str(line.get("task_id")), []))
                    found["ids"].append(tree["i"])
                    found["nodes"].append(len(tree["nodes"]))
                    found["best"].append(max(node[3] for node in tree["nodes"]))
                    found["revisions"].append(len(tree["revisions"]))
                    letters.append(tree["s"][0])
                    yield tree

            name = f"trees-{len(sets)}"
            starts = write_records(folder, name, records())
            label = row_name(method, row)
            sets.append({"key": row, "label": label, "file": name, "starts": starts, "s": "".join(letters), **found})
    write_chunk(folder, "trees-index", {"sets": sets})
    return [(str(one["key"]), str(one["label"])) for one in sets if one["ids"]]


def to_page(tree: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]) -> Json:
    """Convert a line of trees.jsonl. ``logs`` are the pair logs of its task, including those of other trees."""
    nodes = []
    for node in tree["nodes"]:
        flags = (
            TERMINAL * bool(node.get("terminal")) + DONE * bool(node.get("done"))
            + INVALID * (not node.get("valid", True)) + DISASTER * bool(node.get("disaster"))
        )  # fmt: skip
        numbers = [node.get("parent"), node.get("visits", 0), node.get("value", 0.0), node.get("reward", 0.0), flags]
        nodes.append([*numbers, *(clip(node.get(key, "")) for key in ("action", "reply", "observation"))])
    children: dict[int | None, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        children[node[0]].append(number)
    opened = len(tree["prompt"])
    revisions = [found for log in logs if (found := _revision(log, nodes, children, opened)) is not None]
    return {
        "i": tree["id"], "s": tree.get("status", "unsolved"), "seed": tree.get("seed", ""),
        "q": clip(tree["prompt"][-1]["content"]) if tree["prompt"] else "", "nodes": nodes, "revisions": revisions,
        **({"e": clip(str(tree["error"]))} if tree.get("error") else {}),
    }  # fmt: skip


def _revision(
    log: Mapping[str, Any], nodes: Sequence[list[Any]], children: Mapping[int | None, list[int]], opened: int
) -> Json | None:
    """The revision trajectory of a pair log; None if its paths belong to another tree."""
    good = _path(log.get("high_log") or [], nodes, children, opened)
    bad = _path(log.get("low_log") or [], nodes, children, opened)
    if good is None or bad is None:
        return None
    judged = log.get("revise_feedback") or []
    walked = bad[: len(judged)] if judged else bad
    verdicts = [
        [node, clip(one.get("judgement", "")), clip(one.get("revision_feedback", ""))]
        for node, one in zip(walked, judged, strict=False)
    ]
    messages = [
        {"r": one["role"] if one["role"] != "user" or place < opened else "environment",
         "p": [[clip(one["content"]), float(bool(one.get("loss"))), None]]}
        for place, one in enumerate(log["revise_log"])
    ]  # fmt: skip
    return {"good": good, "bad": bad, "verdicts": verdicts, "cut": walked[-1] if walked else 0, "m": messages}


def _path(
    messages: Sequence[Mapping[str, Any]], nodes: Sequence[list[Any]], children: Mapping[int | None, list[int]],
    opened: int,
) -> list[int] | None:  # fmt: skip
    """The path of nodes whose replies and observations match a conversation after its opening; None if none does."""
    said = [clip(one["content"]) for one in messages[opened:]]
    ways: list[list[int]] = [[]]
    for place in range(0, len(said), 2):
        reply, seen = said[place], said[place + 1] if place + 1 < len(said) else None
        ways = [
            [*way, child] for way in ways for child in children.get(way[-1] if way else 0, [])
            if nodes[child][6] == reply and (seen is None or nodes[child][7] == seen)
        ]  # fmt: skip
    return ways[0] if ways and ways[0] else None


def _logs(run: Run, folder: Path) -> dict[str, list[Json]]:
    """Task -> its pair logs."""
    found: dict[str, list[Json]] = defaultdict(list)
    for path in sorted(folder.glob("*_centric.jsonl")):
        for _, line, _ in run.records(path, "a pair log", PairLog.model_validate):
            found[str(line.get("task_num"))].append(line)
    return found


def drawing() -> Json:
    """A Vega specification of a tree drawn from left to right; the page inserts the nodes into its first data set."""
    paths = ["good", "bad", "both", ""]
    colours, dashes = ["#009e73", "#d55e00", "#8a7a00", "#9aa1a9"], [[1, 0], [5, 3], [12, 3, 3, 3], [1, 0]]
    stroke, dash = ({"scale": scale, "field": "target.path"} for scale in ("path", "dash"))
    return {
        "$schema": "https://vega.github.io/schema/vega/v6.json",
        "width": 620, "height": 300, "padding": {"left": 12, "right": 12, "top": 8, "bottom": 24}, "wide": True,
        "data": [
            {"name": "tree", "values": [], "transform": [
                {"type": "stratify", "key": "id", "parentKey": "parent"},
                {"type": "tree", "method": "tidy", "size": [{"signal": "height"}, {"signal": "width"}],
                 "as": ["y", "x", "level", "below"]}]},
            {"name": "links", "source": "tree", "transform": [
                {"type": "treelinks"}, {"type": "linkpath", "orient": "horizontal", "shape": "diagonal"}]},
        ],
        "scales": [
            {"name": "path", "type": "ordinal", "domain": paths, "range": colours},
            {"name": "dash", "type": "ordinal", "domain": paths, "range": dashes},
            {"name": "value", "type": "linear", "domain": [0, 1], "range": ["#c9ced4", "#0072b2"], "clamp": True},
            {"name": "size", "type": "sqrt", "domain": {"data": "tree", "field": "visits"}, "zero": True,
             "range": [1, 7]},
        ],
        "legends": [
            {"stroke": "path", "strokeDash": "dash", "title": "path", "values": ["good", "bad", "both"],
             "orient": "bottom", "direction": "horizontal", "symbolType": "stroke", "symbolStrokeWidth": 4,
             "symbolSize": 900},
            {"fill": "value", "title": "mean value", "orient": "bottom", "direction": "horizontal",
             "gradientLength": 120},
        ],
        "marks": [
            {"type": "path", "from": {"data": "links"}, "encode": {"update": {
                "path": {"field": "path"}, "stroke": stroke, "strokeDash": dash, "strokeOpacity": {"value": 0.85},
                "strokeWidth": {"scale": "size", "field": "target.visits"}}}},
            {"type": "symbol", "from": {"data": "tree"}, "encode": {"update": {
                "x": {"field": "x"}, "y": {"field": "y"}, "size": {"value": 70}, "cursor": {"value": "pointer"},
                "fill": {"scale": "value", "field": "mean"}, "stroke": {"scale": "path", "field": "path"},
                "strokeWidth": {"value": 1.5}, "tooltip": {"field": "told"}}}},
        ],
    }  # fmt: skip
