"""The report in a real browser without a mouse, colours or a screen: keyboard, screen readers, forced colours, print.

See ``test_page``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from selfimprove.apps.page.build import VIEWS, build
from tests.backends.page_browser import Tab, counted, see, until
from tests.support.reports import HOSTILE, write_rise

pytestmark = [pytest.mark.backend, pytest.mark.timeout(3600)]  # minutes; far longer on a loaded machine


VIEWED = [
    *(view for view, _ in VIEWS),
    "episodes.html#method=rise&set=base/evaluation&at=0", "episodes.html#method=rise&set=iter1/training&at=1",
    "episodes.html#method=rise&set=iter1/evaluation&at=4&beside=base/evaluation", "trees.html#tree=1&node=3",
    "pairs.html#set=spin/iter1/pairs&at=0", "episodes.html#method=reflect_rl&set=reflect_rl/reinforcement&at=7",
]  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_every_view_fits_the_screen_and_is_accessible_in_both_widths_and_colour_schemes(
    browser: Browser, report: tuple[Path, Path], width: int, scheme: str
) -> None:
    opened = Tab(browser, report[1], width, scheme)
    found = []
    for number, view in enumerate(VIEWED):
        page = opened.open(view)
        page.wait_for_load_state()
        see(page, f"{number:02}-{view.partition('.')[0]}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the screen"
        assert page.evaluate("window.hacked") is None
        violations = Axe().run(page, options={"preload": False}).response["violations"]
        found += [
            (view, one["id"], one["nodes"][0]["html"][:200])
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]
    opened.close()
    assert found == []
    assert opened.wrong == []


def test_a_tree_can_be_navigated_with_the_keyboard(tab: Tab) -> None:
    page = tab.open("trees.html#tree=0")
    page.wait_for_selector("#node-0")
    page.focus("#node-0")
    for key, node in (("ArrowDown", 1), ("ArrowRight", 2), ("ArrowUp", 1), ("ArrowLeft", 1), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"node-{node}"
    page.keyboard.press("ArrowLeft")
    assert page.locator("[role=treeitem]").count() == 1


def test_a_collapsed_tree_can_still_be_reached_with_the_keyboard(tab: Tab) -> None:
    page = tab.open("trees.html#tree=0&node=3")
    page.wait_for_selector("#node-3")
    page.click("#collapse")
    assert page.locator("[role=treeitem]").count() == 1
    page.focus("#node-0")
    page.keyboard.press("ArrowRight")
    assert page.locator("[role=treeitem]").count() > 1
    assert page.get_attribute("#node-0", "tabindex") == "0"


def test_the_keyboards_focus_stays_where_it_is_when_the_view_changes(tab: Tab) -> None:
    focused = "document.activeElement.textContent"
    for view in ("episodes.html#method=rise&set=iter1/evaluation", "pairs.html#set=spin/iter1/pairs"):
        page = tab.open(view)
        page.wait_for_selector("#list a")
        page.focus("#list a >> nth=1")
        chosen = page.evaluate(focused)
        page.keyboard.press("Enter")
        page.wait_for_selector("#reader h2")
        assert page.evaluate(focused) == chosen
    page = tab.open("episodes.html#method=rise&set=iter1/evaluation&at=0")
    page.wait_for_selector("#reader h2")
    page.focus("#reader button")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Show text")
    assert page.evaluate(focused) == "Show text"
    page.focus("#reader select")
    page.select_option("#reader select", "base/evaluation")
    page.wait_for_selector("#reader .beside")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    page = tab.open("trees.html#tree=0")
    page.wait_for_selector("#revisions button")
    page.focus("#revisions button")
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('revision')")
    assert page.evaluate(focused) == page.inner_text("#revisions button")


def test_the_keyboards_focus_leaves_a_button_at_the_end_of_a_list(browser: Browser, tmp_path: Path) -> None:
    write_rise(tmp_path / "run", count=50)
    build(tmp_path / "run", tmp_path / "out")
    opened = Tab(browser, tmp_path / "out")
    page = opened.open("episodes.html#method=rise&set=base/evaluation")
    counted(page)
    page.focus("#next")
    for shown, focused in (("41–50", "previous"), ("1–40", "next")):
        page.keyboard.press("Enter")
        assert page.inner_text("#place[role=status]") == shown
        assert page.evaluate("document.activeElement.id") == focused
    opened.close()
    assert opened.wrong == []


def test_a_long_message_can_be_scrolled_with_the_keyboard_in_every_browser(tab: Tab) -> None:
    page = tab.open(f"episodes.html#method=rise&set=base/evaluation&at={len(HOSTILE)}")
    page.wait_for_selector("#reader .message.assistant")
    long = page.locator("#reader .message.assistant .text").first
    assert (long.get_attribute("tabindex"), long.get_attribute("role")) == ("0", "group")
    assert page.locator("#reader .message.user .text").first.get_attribute("tabindex") is None


def test_a_charts_data_table_has_the_names_and_numbers_of_its_tooltips(tab: Tab) -> None:
    page = tab.open("rise.html")
    page.locator("figure[data-chart=curve-0]").scroll_into_view_if_needed()
    page.click("figure[data-chart=curve-0] summary")
    table = page.locator("figure[data-chart=curve-0] .wide")
    table.wait_for()
    assert table.get_attribute("aria-label") == "Data table: accuracy by turn, one line per row, with standard errors"
    heads = ["row", "turn", "attempt correct", "minus standard error", "plus standard error"]
    assert table.locator("th[scope=col]").all_inner_texts() == heads
    assert table.locator("th[scope=row]").first.inner_text() == "base"


def test_the_values_of_tokens_are_also_in_a_table(tab: Tab) -> None:
    page = tab.open("episodes.html#method=rise&set=base/evaluation&at=0")
    page.click("#reader .tools button")
    page.wait_for_selector("#reader .token")
    page.focus("text=Token values >> nth=0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#reader table")
    assert page.locator("#reader table >> nth=0 >> tbody tr").all_inner_texts()[1].split("\t")[:2] == ["+", "2"]


def test_screen_readers_hear_a_nodes_marks(tab: Tab) -> None:
    page = tab.open("trees.html#tree=0")
    page.wait_for_selector("#node-0")
    for node in page.locator("[role=treeitem]").all():
        name = node.get_attribute("aria-label") or ""
        assert all(mark in name for mark in node.locator("> .node .badge").all_inner_texts())
    assert "judged bad, cut here, bad path" in (page.get_attribute("#node-2", "aria-label") or "")


def test_the_paths_of_a_tree_s_drawing_differ_in_their_dashes_too(tab: Tab) -> None:
    page = tab.open("trees.html#tree=0")
    page.wait_for_selector("#drawing svg")
    see(page, "tree-paths")
    lines = page.locator("#drawing .mark-path path")
    dashes = {line.get_attribute("stroke"): line.get_attribute("stroke-dasharray") for line in lines.all()}
    assert dashes["#009e73"] != dashes["#d55e00"]
    assert page.locator("#drawing .role-legend path[stroke-dasharray='5,3']").count() == 1


def test_escape_closes_a_chart_s_tooltip(tab: Tab) -> None:
    page = tab.open("trees.html#tree=0")
    page.hover("#drawing .mark-symbol path >> nth=0")
    page.wait_for_selector("#vg-tooltip-element.visible")
    page.keyboard.press("Escape")
    assert not page.is_visible("#vg-tooltip-element")


def test_the_theme_button_toggles_between_dark_and_light(tab: Tab) -> None:
    page = tab.open("index.html")
    colours = []
    for _ in range(3):
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.click("#theme")
    assert colours[0] == colours[2] != colours[1]


COLOUR_OF_TITLE = "getComputedStyle(document.querySelector('.drawing svg text')).fill"
COLOUR_OF_TEXT = "getComputedStyle(document.body).color"


def test_charts_follow_the_systems_colour_scheme_and_forced_colours(tab: Tab) -> None:
    page = tab.open("rise.html")
    until(page, "document.querySelector('.drawing svg') !== null")
    colours = []
    for scheme, forced in (("light", "none"), ("dark", "none"), ("dark", "active")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        assert page.evaluate(COLOUR_OF_TITLE) == page.evaluate(COLOUR_OF_TEXT)
        colours.append(page.evaluate(COLOUR_OF_TEXT))
    assert len(set(colours)) == 3


def test_forced_colours_leave_the_current_view_and_the_differences_of_pairs_marked(tab: Tab) -> None:
    page = tab.open("pairs.html#set=spin/iter1/pairs&at=1")
    page.wait_for_selector("#reader ins")
    page.emulate_media(forced_colors="active")
    lines = page.evaluate(
        "[...document.querySelectorAll('nav a')].map((one) => getComputedStyle(one).borderBottomStyle)"
    )
    assert lines.count("solid") == 1
    for mark in ("ins", "del"):
        assert "underline" in page.evaluate(f"getComputedStyle(document.querySelector('{mark}')).textDecoration")


def test_paper_has_dark_text_all_charts_and_whole_messages(tab: Tab) -> None:
    page = tab.open("rise.html")
    if page.evaluate(COLOUR_OF_TEXT) == "rgb(31, 35, 40)":
        page.click("#theme")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(page, "[...document.querySelectorAll('.drawing')].every((one) => one.querySelector('svg'))")
    assert page.evaluate(COLOUR_OF_TEXT) == page.evaluate(COLOUR_OF_TITLE) == "rgb(31, 35, 40)"
    page = tab.open(f"episodes.html#method=rise&set=base/evaluation&at={len(HOSTILE)}")
    page.wait_for_selector("#reader .text")
    for hidden in (
        "(one) => one.scrollHeight > one.clientHeight + 1",
        "(one) => one.scrollWidth > one.clientWidth + 1",
    ):
        assert not page.evaluate(f"[...document.querySelectorAll('.text')].some({hidden})")
