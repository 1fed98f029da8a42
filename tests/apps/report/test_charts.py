"""Charts of a method's rows: points that do not hide each other, and lines that are explained."""

import re

import pytest
from vl_convert import vegalite_to_svg

from selfimprove.apps.page.figures import _bins, _distributions
from selfimprove.apps.page.library import Library
from selfimprove.apps.report.charts import VEGA_LITE, Spec, curve_chart, lines_chart


def curve(points: list[tuple[str, int, float]], x: str = "iteration") -> dict[str, object]:
    drawn = [{"row": row, x: place, "score": value, "se": 0.1} for row, place, value in points]
    return {"x": x, "y": "score", "title": "score by iteration", "top": None, "points": drawn}


def test_controls_at_one_iteration_are_drawn_beside_each_other_and_keep_their_number() -> None:
    points = [("Agent-R", 0, 1.0), ("Agent-R", 1, 2.0), ("good_only", 1, 2.0), ("direct", 1, 2.0)]
    spec = curve_chart("agent_r", curve(points), ["Agent-R"])
    values = spec["data"]["values"]
    assert [value["x"] for value in values] == [0, 1, 1, 1]
    assert [value["place"] for value in values[:2]] == [0, 1]
    assert 1 < values[2]["place"] < values[3]["place"] < 1.5
    assert spec["layer"][-1]["encoding"]["x"]["title"] == "iteration (0: the base; controls: the one that they match)"
    assert spec["title"] == "Agent-R: score by iteration"  # only one line, which needs no explanation


def test_a_chart_with_solid_and_dashed_lines_says_what_they_are() -> None:
    points = [(row, turn, 0.5) for row in ("base", "iter1") for turn in (1, 2)]
    spec = curve_chart("rise", curve(points, "turn"), ["iter1"])
    assert spec["title"] == {
        "text": "RISE: score by iteration", "subtitle": "solid: the method; dashed: other rows",
    }  # fmt: skip
    assert all(value["place"] == value["x"] for value in spec["data"]["values"])
    noted = curve_chart("rise", {**curve(points, "turn"), "note": "mean over 3 turns"}, ["iter1"])
    assert noted["title"]["subtitle"] == "solid: the method; dashed: other rows; mean over 3 turns"


@pytest.mark.parametrize("points", [3, 20])
def test_rows_are_told_apart_by_shapes_or_dashes_not_by_colour_alone(points: int) -> None:
    rows = ("base", "more_sft", "unweighted", "iter1")
    line = curve_chart("rise", curve([(row, place, 0.5) for row in rows for place in range(points)]), ["iter1"])
    loss = lines_chart("loss", "rise", {row: [(float(place), 0.5) for place in range(points)] for row in rows}, "loss")
    for spec in (line, loss):
        assert spec is not None
        svg = vegalite_to_svg(spec, vl_version=VEGA_LITE)
        assert svg.count('aria-roledescription="legend"') == 1  # shows colour and shape, or dashes, together
        symbols = re.findall(r"role-legend-symbol[^>]*><path([^>]*)>", svg)
        kinds = [re.search(r' d="[^"]*"' if points == 3 else r'stroke-dasharray="[^"]*"', one) for one in symbols]
        assert len({found[0] if found else "" for found in kinds}) == len(symbols) == len(rows)


def test_the_tooltip_and_the_table_of_a_curve_name_its_axes_and_show_its_errors() -> None:
    spec = curve_chart("rise", curve([("base", 1, 0.5), ("base", 2, 0.6)], "turn"), ["base"])
    titles = [one["title"] for one in spec["layer"][-1]["encoding"]["tooltip"]]
    assert titles == ["row", "turn", "score", "minus standard error", "plus standard error"]


def marks(spec: Spec) -> int:
    """The number of point marks in the drawing."""
    return vegalite_to_svg(spec, vl_version=VEGA_LITE).count('aria-roledescription="point"')


def test_a_line_of_one_point_beside_long_lines_is_drawn_as_a_point() -> None:
    long = [(float(step), 0.5) for step in range(20)]
    loss = lines_chart("loss", "rise", {"base": long, "more_sft": [(5.0, 0.4)]}, "loss")
    assert loss is not None
    assert marks(loss) == 1
    both = curve([*(("base", step, 0.5) for step in range(20)), ("more_sft", 5, 0.4)], "step")
    assert marks(curve_chart("rise", both, ["base"])) == 1
    few = lines_chart("loss", "rise", {"base": long[:3], "more_sft": [(5.0, 0.4)]}, "loss")
    assert few is not None
    assert marks(few) == 4


def test_the_steps_of_a_short_run_are_whole_numbers() -> None:
    chart = lines_chart("loss", "rise", {"base": [(1.0, 0.5), (2.0, 0.4), (3.0, 0.3)]}, "loss")
    assert chart is not None
    labels = re.findall(r">([\d.]+)</text>", vegalite_to_svg(chart, vl_version=VEGA_LITE))
    assert "3" in labels
    assert "2.5" not in labels


def test_the_labels_of_the_steps_do_not_touch() -> None:
    chart = lines_chart("loss", "rise", {"base": [(float(step), 0.1) for step in range(0, 2220, 10)]}, "loss")
    assert chart is not None
    svg = vegalite_to_svg(chart, vl_version=VEGA_LITE)
    labels = re.findall(r'text-anchor="(\w+)" transform="translate\(([\d.]+),15\)"[^>]*>\d+<', svg)
    assert len(labels) == 13
    assert {anchor for anchor, _ in labels} == {"middle"}  # the last one was moved to the left, to the one before it


@pytest.mark.parametrize(
    ("method", "first", "second", "title"),
    [
        ("rise", "sequential", "parallel", "Turns per episode, sequential runs"),
        ("agent_r", "from the start", "from a bad beginning", "Turns per episode, from the start"),
    ],
)
def test_distributions_leave_out_the_second_run_of_an_evaluation(
    method: str, first: str, second: str, title: str
) -> None:
    library = Library(method, runs={"": 0, first: 1, second: 2})
    library.sets.append(
        {"row": "base", "phase": "evaluation", "size": 4, "s": "suuu", "n": [5, 1, 2, 1], "u": [1, 2, 1, 2],
         "x": 0, "z": 0, "r": [1000, 0, 0, 0]}
    )  # fmt: skip
    charts = {key: chart for key, _, chart in _distributions(method, library)}
    assert charts["spread-n"]["title"] == title
    assert [(bar["x"], bar["count"]) for bar in charts["spread-n"]["data"]["values"]] == [("2", 1), ("5", 1)]


@pytest.mark.parametrize(
    ("values", "key", "first", "last"),
    [
        (list(range(10_000, 10_140, 7)), "w", "10,000 to 10,016", "10,119 to 10,135"),
        (list(range(0, 1000, 7)), "r", "0 to 0.124", "0.875 to 0.999"),
    ],
)
def test_the_bins_of_a_distribution_have_exact_and_different_labels(
    values: list[int], key: str, first: str, last: str
) -> None:
    order, label = _bins(values, key)
    assert (order[0], order[-1]) == (first, last)
    assert len(set(order)) == len(order)
    assert {label(value) for value in values} <= set(order)
