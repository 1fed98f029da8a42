"""Charts as Vega-Lite specifications, drawn as PNGs by `make report` and in the browser by the page.

Each function returns a specification that includes its data. Colours and fonts come from ``theme``, which the page
overrides in dark mode.
"""

import json
import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any

from selfimprove.apps.report.words import method_name, metric_name, row_name
from selfimprove.core.publish import aside
from selfimprove.methods.summary import headline

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
VEGA_LITE = "6.4"
"""The version that draws the PNGs and that the page bundles."""

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f6a00", "#3d9bd8", "#8c564b", "#666666", "#882255", "#332288",
)  # fmt: skip
"""Okabe and Ito's colour-blind-safe palette, its yellow and sky blue darkened for a white background, and four more
colours."""

SHAPES = ("circle", "square", "cross", "diamond", "triangle-up", "triangle-down", "triangle-right", "triangle-left")
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [12, 3], [6, 2, 2, 2, 2, 2], [2, 5], [10, 4, 4, 4], [2, 8])
"""Rows differ in the shapes of their points, or, without points, in the dashes of their lines, not in colour alone."""

MANY = 15
"""Lines with this many points or more have no point marks."""

MOST = 400
"""Maximum number of points that a line by step is drawn through."""

WIDTH, ROW_HEIGHT = 560, 26

BESIDE = 0.06
"""Distance, in iterations, between controls that match the same iteration."""


def theme() -> dict[str, Any]:
    """The style of all charts: thin axes, light grid, no frame."""
    font = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
    return {
        "background": "white",
        "font": font,
        "view": {"stroke": None},
        "axis": {
            "domainColor": "#8a8a8a", "tickColor": "#8a8a8a", "gridColor": "#e9e9e9", "labelColor": "#333333",
            "titleColor": "#333333", "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
            "tickSize": 4,
        },
        "legend": {
            "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 320, "symbolStrokeWidth": 2.5, "symbolOpacity": 1,
        },
        "title": {
            "fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 12, "color": "#222222",
            "subtitleColor": "#222222", "subtitleFontSize": 12,
        },
        "range": {"category": list(COLOURS)},
    }  # fmt: skip


def own_rows(method: str, summary: Mapping[str, Any]) -> set[str]:
    """The rows that belong to the method itself, not controls, agents or its base."""
    return {name for name in summary["order"] if row_name(method, name).startswith(method_name(method))}


def rows_chart(method: str, summary: Mapping[str, Any]) -> Spec:
    """The headline metric of each row: a dot with its standard error, the method's own rows in colour."""
    metric, own = headline(summary), own_rows(method, summary)
    values = []
    for name in summary["order"]:
        measured = summary["rows"][name]["metrics"][metric]
        low, high = measured["mean"] - measured["se"], measured["mean"] + measured["se"]
        kind = method_name(method) if name in own else "base, controls and agents"
        values.append(
            {"row": row_name(method, name), "mean": measured["mean"], "low": low, "high": high, "kind": kind,
             "n": measured["n"]}
        )  # fmt: skip
    y = {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 240, "grid": True}}
    colour = {
        "field": "kind", "type": "nominal", "title": None,
        "scale": {"domain": [method_name(method), "base, controls and agents"], "range": [COLOURS[0], "#777777"]},
        "legend": {"orient": "top", "symbolType": "circle"},
    }  # fmt: skip
    title = f"{metric_name(metric)} ± standard error"
    x = {"type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}, "axis": {"tickCount": 6}}
    return _spec(
        f"{method_name(method)}: all rows on held-out tasks",
        {
            "data": {"values": values},
            "height": {"step": ROW_HEIGHT},
            "width": WIDTH,
            "layer": [
                {"mark": {"type": "rule", "strokeWidth": 2},
                 "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y, "color": colour}},
                {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                 "encoding": {"x": {"field": "mean", **x}, "y": y, "color": colour,
                              "tooltip": _tips("row", "mean", "low", "high", "n", mean=metric_name(metric))}},
            ],
        },
    )  # fmt: skip


def curves_of(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The curves of a summary that have points; a method has one ``curve`` or several ``curves``."""
    return [one for one in summary.get("curves") or [summary.get("curve")] if one and one["points"]]


def curve_chart(method: str, curve: Mapping[str, Any], own: Sequence[str]) -> Spec:
    """One line per row with error bars; the method's own rows (``own``) are solid and thick, others dashed.

    Controls that are one point each, at the iteration that they match, are drawn beside each other.
    """
    points = curve["points"]
    x = curve["x"]
    y = next(key for key in points[0] if key not in ("row", "se", x))
    names = list(dict.fromkeys(point["row"] for point in points))
    counts = Counter(point["row"] for point in points)
    single = [name for name in names if counts[name] == 1 and name not in own]
    values = [
        {"row": row_name(method, point["row"]), "x": point[x], "y": point[y], "low": point[y] - point["se"],
         "high": point[y] + point["se"], "own": point["row"] in own,
         "place": point[x] + (BESIDE * (single.index(point["row"]) + 1) if point["row"] in single else 0)}
        for point in points
    ]  # fmt: skip
    few = len({point[x] for point in points}) < MANY
    wide = {"condition": {"test": "datum.own", "value": 2.6}, "value": 1.4}
    places = ["0: the base"] if any(point[x] == 0 for point in points) else []
    places += ["controls: the one that they match"] if single else []
    title = f"{x} ({'; '.join(places)})" if places else x
    shared = {
        "x": {"field": "place", "type": "quantitative", "title": title,
              "axis": {**_whole([point[x] for point in points]), "grid": False},
              "scale": {"zero": False, "padding": 8}},
        "color": _legend(method, names),
    }  # fmt: skip
    dash: Spec = {"condition": {"test": "datum.own", "value": [1, 0]}, "value": [5, 3]}
    if not _all_pointed(values):
        other = cycle(DASHES[1:])
        dash = _apart(shared["color"], [DASHES[0] if name in own else next(other) for name in names])
    scale = {"domain": [0, curve["top"]]} if curve.get("top") is not None else {"zero": False}
    height = {"type": "quantitative", "title": metric_name(curve["y"]), "scale": scale}
    tips = _tips("row", "x", "y", "low", "high", x=x, y=metric_name(curve["y"]))
    line: Spec = {
        "layer": [{"mark": {"type": "line"}}, *_points(values, shared["color"])],
        "encoding": {**shared, "y": {"field": "y", **height}, "strokeWidth": wide, "strokeDash": dash,
                     "detail": {"field": "row"}, "tooltip": tips},
    }  # fmt: skip
    layers = [line]
    if few and any(point["se"] for point in points):
        layers.insert(
            0,
            {"mark": {"type": "rule", "opacity": 0.55, "strokeWidth": 1.4},
             "encoding": {**shared, "y": {"field": "low", **height}, "y2": {"field": "high"}}},
        )  # fmt: skip
    body = {"data": {"values": values}, "width": WIDTH, "height": 300, "layer": layers}
    notes = [text for text in (_lines(values), curve.get("note", "")) if text]
    return _spec(f"{method_name(method)}: {curve['title']}", body, "; ".join(notes))


def lines_chart(
    title: str, method: str, series: Mapping[str, Sequence[tuple[float, float]]], y: str, note: str = ""
) -> Spec | None:
    """One line per row through (step, y) points, such as the training loss; None if there are no points."""
    values: list[dict[str, Any]] = [
        {"row": row_name(method, row), "x": point[0], "y": point[1]}
        for row, points in series.items()
        for point in thinned(points)
    ]
    if not values:
        return None
    encoding = {
        "x": {
            "field": "x",
            "type": "quantitative",
            "title": "step",
            "axis": {
                "grid": False,
                "labelOverlap": True,
                "labelFlush": False,
                **_whole([value["x"] for value in values]),
            },
        },
        "y": {"field": "y", "type": "quantitative", "title": y, "scale": {"zero": False}},
        "color": (colour := _legend(method, list(series))),
        "tooltip": _tips("row", "x", "y", x="step", y=y),
    }
    if not _all_pointed(values):
        encoding["strokeDash"] = _apart(colour, DASHES[: len(series)][::-1])  # the last row is solid
    layer = [{"mark": {"type": "line", "strokeWidth": 1.6}}, *_points(values, colour)]
    body = {"data": {"values": values}, "width": WIDTH, "height": 260, "encoding": encoding, "layer": layer}
    return _spec(title, body, note)


def counts_chart(
    title: str, method: str, series: Mapping[str, Mapping[str, int]], x: str, order: Sequence[str]
) -> Spec | None:
    """Shares of categories by row, as grouped bars: the distribution of a discrete value; None if there are none."""
    values = []
    for row, counts in series.items():
        total = sum(counts.values())
        values += [
            {"row": row_name(method, row), "x": key, "share": counts.get(key, 0) / total, "count": counts.get(key, 0)}
            for key in order
            if total
        ]
    if not values:
        return None
    encoding = {
        "x": {
            "field": "x",
            "type": "nominal",
            "sort": list(order),
            "title": x,
            "axis": {"labelAngle": -40 if sum(map(len, order)) > 40 else 0},
        },
        "xOffset": {"field": "row", "sort": None},
        "y": {"field": "share", "type": "quantitative", "title": "share of episodes", "axis": {"format": "%"}},
        "color": _legend(method, list(series)),
        "tooltip": _tips("row", "x", "share", "count", x=x, share="share of episodes", count="episodes"),
    }
    body = {"data": {"values": values}, "width": WIDTH, "height": 220, "mark": {"type": "bar"}, "encoding": encoding}
    return _spec(title, body)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``MOST`` of the points, evenly spaced, including the last."""
    if len(points) <= MOST:
        return list(points)
    return [points[place * (len(points) - 1) // (MOST - 1)] for place in range(MOST)]


def write_png(spec: Mapping[str, Any], file: Path) -> None:
    """Draw a chart, unless the file already shows it: the PNG stores its specification's hash as a comment."""
    shown = sha256(json.dumps([VEGA_LITE, spec], sort_keys=True).encode()).hexdigest()
    if file.is_file() and shown.encode() in file.read_bytes():
        return
    from vl_convert import vegalite_to_png

    picture = vegalite_to_png(json.dumps(spec), vl_version=VEGA_LITE, scale=2)
    with aside(file) as part:
        part.write_bytes(_with_comment(picture, shown))


def _with_comment(png: bytes, text: str) -> bytes:
    """The PNG with a tEXt chunk before its last chunk (PNG specification, 11.3.4.3)."""
    body = b"tEXt" + b"Comment\x00" + text.encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:-12] + chunk + png[-12:]


def _whole(places: Sequence[float]) -> dict[str, Any]:
    """An axis's ticks at whole numbers; with few points, at these alone, since Vega would also draw halves."""
    few = sorted(set(places))
    return {"tickMinStep": 1, "format": "d"} | ({"values": few} if len(few) < MANY else {})


def _apart(colour: Mapping[str, Any], kinds: Sequence[Any]) -> Spec:
    """A row's shape or dashes, in the legend of the colours."""
    return {**colour, "scale": {**colour["scale"], "range": list(kinds[: len(colour["scale"]["domain"])])}}


def _all_pointed(values: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every line has point marks."""
    return max(Counter(value["row"] for value in values).values(), default=0) < MANY


def _points(values: Sequence[Mapping[str, Any]], colour: Mapping[str, Any]) -> list[Spec]:
    """A layer with point marks for the lines of fewer than ``MANY`` points; a line of one point is nothing else."""
    counts = Counter(value["row"] for value in values)
    few = [row for row, points in counts.items() if points < MANY]
    if not few:
        return []
    shown = [{"filter": {"field": "row", "oneOf": few}}]
    mark = {"type": "point", "filled": True, "size": 45, "opacity": 1}
    shapes = {"encoding": {"shape": _apart(colour, SHAPES)}} if _all_pointed(values) else {}
    return [{"mark": mark, "transform": shown, **shapes}]


def _legend(method: str, names: Sequence[str]) -> dict[str, Any]:
    return {
        "field": "row", "type": "nominal", "title": None,
        "sort": [row_name(method, name) for name in names],
        "scale": {"domain": [row_name(method, name) for name in names]},
        "legend": {"orient": "bottom", "columns": 2},
    }  # fmt: skip


def _tips(*fields: str, **titles: str) -> list[dict[str, Any]]:
    """A tooltip of fields with titles; the page's table of a chart's numbers has the same columns."""
    titles = {"low": "minus standard error", "high": "plus standard error", **titles}
    special = {"x": {"field": "x"}, "row": {"field": "row", "type": "nominal"}}
    return [
        special.get(name, {"field": name, "type": "quantitative", "format": ".4~g"}) | {"title": titles.get(name, name)}
        for name in fields
    ]


def _lines(values: Sequence[Mapping[str, Any]]) -> str:
    """A subtitle that explains the kinds of lines; empty if there is only one."""
    lines = Counter((value["row"], value["own"]) for value in values)
    kinds = {own for (_, own), points in lines.items() if points > 1}
    return "solid: the method; dashed: other rows" if len(kinds) > 1 else ""


def _spec(title: str, body: Mapping[str, Any], subtitle: str = "") -> Spec:
    padding = {"left": 5, "right": 12, "top": 5, "bottom": 5}
    text = {"text": title, "subtitle": subtitle} if subtitle else title
    return {"$schema": SCHEMA, "config": theme(), "title": text, "padding": padding, **body}
