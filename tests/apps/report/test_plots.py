"""The page of `make report` opens without a network, and its plots stay within their frames."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from dvc_render import VegaRenderer
from dvc_render.html import render_html
from ruamel.yaml import YAML

from selfimprove.apps.report.offline import KEPT, keep_libraries, main, make_offline

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = ROOT / ".dvc/plots"


def renderer(name: str, template: str, x: str, y: str, points: list[dict[str, Any]]) -> VegaRenderer:
    values = [{**point, "rev": "workspace"} for point in points]
    return VegaRenderer(values, name, template=template, template_dir=str(TEMPLATES), x=x, y=y, title=f"−{name}")


SCORES = [{"row": row, "iteration": i, "score": 30.0 + i} for row in ("Agent-R", "more_sft") for i in range(3)]


def test_the_page_loads_nothing_from_a_server_and_declares_its_encoding(tmp_path: Path) -> None:
    page = tmp_path / "dvc/index.html"
    page.parent.mkdir()
    render_html([renderer("scores", "rows", "iteration", "score", SCORES)], page, html_template=TEMPLATES / "page.html")
    assert "https://cdn" in page.read_text(encoding="utf-8")
    make_offline(page)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r'<script src="([^"]*)"', text) == ["vega.js"]
    assert '<meta charset="utf-8">' in text.partition("<title>")[0]
    libraries = page.with_name("vega.js").read_text(encoding="utf-8")
    assert all(f"window.{name}=" in libraries.replace(" ", "") for name in ("vega", "vegaLite", "vegaEmbed"))
    make_offline(page)  # a second call changes nothing
    assert page.read_text(encoding="utf-8") == text


def test_dvc_s_own_page_falls_back_to_the_libraries_stored_by_setup(tmp_path: Path) -> None:
    page = tmp_path / "dvc_plots/index.html"  # where `dvc plots show` writes it
    render_html([renderer("scores", "rows", "iteration", "score", SCORES)], page, html_template=TEMPLATES / "page.html")
    first, *remote = re.findall(r'<script src="([^"]*)"', page.read_text(encoding="utf-8"))
    assert (page.parent / first).resolve() == tmp_path / KEPT
    assert all(one.startswith("https://cdn") for one in remote)  # loaded later, these replace it if the server answers
    keep_libraries(tmp_path / KEPT)
    assert "window.vegaEmbed=" in (tmp_path / KEPT).read_text(encoding="utf-8").replace(" ", "")


def test_libraries_that_cannot_be_written_are_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["offline"])
    Path(".dvc").write_text("not a folder")
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.count("\n") == 1


def test_scores_on_a_scale_of_100_are_drawn_inside_the_frame() -> None:
    svg = vl_convert.vegalite_to_svg(
        renderer("scores", "rows", "iteration", "score", SCORES).get_filled_template(), vl_version="5.20"
    )
    heights = [
        float(y)
        for y in re.findall(r'aria-label="iteration: \d; score: [\d.]+[^"]*"[^>]*translate\([\d.]+,([-\d.]+)\)', svg)
    ]
    assert len(heights) == len(SCORES)
    assert all(0 <= y <= 300 for y in heights)


def test_a_histogram_of_rewards_has_rewards_on_x_and_counts_on_y() -> None:
    stages = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"]
    ((_, plot),) = stages["rise-convert"]["do"]["plots"][0].items()
    assert (plot["x"], plot["y"]) == ("reward", "count")
    points = [{"reward": "0.0", "count": "7"}, {"reward": "0.5", "count": "3"}, {"reward": "1.0", "count": "90"}]
    spec = renderer("rewards", plot["template"], plot["x"], plot["y"], points).get_filled_template()
    assert spec["encoding"]["x"]["field"] == "reward"
    assert spec["encoding"]["y"] == {"field": "count", "type": "quantitative", "title": "count"}


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.json")))
def test_vega_lite_compiles_every_template(name: str) -> None:
    points = [{"row": "a", "x": i, "y": i * i} for i in range(3)]
    spec = renderer("any", name, "x", "y", points).get_filled_template()
    assert vl_convert.vegalite_to_vega(spec, vl_version="5.20")["marks"]
