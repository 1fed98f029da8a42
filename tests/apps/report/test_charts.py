"""Charts of a method's rows: points that do not hide each other, and lines that are explained."""

from selfimprove.apps.report.charts import curve_chart


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
    assert spec["layer"][-1]["encoding"]["x"]["title"] == "iteration (controls: the one that they match)"
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
