"""The report in a real browser (Debian's Chromium), opened from disk: every view, filters, trees, hostile text, size.

Runs in the environment of ``make test-backends-page``, which can import the main environment's packages. The tests run
the smoke profile once and open its report of all four methods; ``RUN=folder`` also opens the report of that run.
Screenshots are kept in ``build/page``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error

from selfimprove.apps.page.build import VIEWS, build
from selfimprove.apps.page.chunks import write_records
from selfimprove.core.records import read_rows
from tests.backends.page_browser import PATIENCE, PICTURES, Tab, counted, see, until
from tests.support.repo_copy import ROOT, copy_repo
from tests.support.repo_copy import run as run_in
from tests.support.reports import (
    HOSTILE,
    make_tree,
    rise_row,
    write_pairs,
    write_rise,
    write_scratch,
    write_trees,
)

pytestmark = [pytest.mark.backend, pytest.mark.timeout(3600)]  # minutes; far longer on a loaded machine
TSC = Path(".venvs/page/node_modules/.bin/tsc")
EPISODES, NODES = 200_000, 5_000


Line = Mapping[str, Any]


def task_of(line: Line) -> tuple[str, str, str]:
    """(task, run, question) of a line of any method's evaluation."""
    if "question" in line:
        run = line.get("run", 0)
        return line["id"].removesuffix(f"#{run}"), str(run), line["question"]
    if "steps" in line:
        return f"{line['env']}-{line['task_id']}", line["id"], f"{line['env']} {line['task_id']}"
    return line["id"], line.get("run", ""), line["query"]


def said_in(line: Line) -> Iterator[str]:
    """All texts of a line's dialogue."""
    yield line["id"]
    yield from (one["content"] for one in [*line.get("prompt", ()), *line.get("messages", ())])
    for turn in line.get("turns", ()):
        yield from (turn["attempts"][turn["chosen"]]["text"], turn["observation"])
    for step in line.get("steps", ()):
        yield from (step.get("prompt") or step["pre"] + step["post"], step.get("reflection") or "", step["label"])


def check_filters(tab: Tab, run: Path, method: str) -> dict[str, int]:
    """Compare each filter's count with the JSONL files of a method's evaluations; return its largest count."""
    paths = sorted((run / "results" / method).glob("*/episodes.jsonl"))
    rows = {path.parent.name: [one for _, one in read_rows(path)] for path in paths}
    most: dict[str, int] = {}

    def expect(name: str, wanted: int) -> None:
        assert counted(page) == wanted, f"{method}, {page.url}"
        most[name] = max(most.get(name, 0), wanted)

    solved = {row: {task_of(one)[:2]: one.get("status") == "solved" for one in lines} for row, lines in rows.items()}
    for row, lines in rows.items():
        page = tab.open(f"episodes.html#method={method}&set={row}/evaluation")
        expect("all", len(lines))
        for value, status in (("s", "solved"), ("u", "unsolved"), ("b", "blocked")):
            page.select_option("[name=result]", value)
            expect(status, sum(one.get("status", "unsolved") == status for one in lines))
        page.select_option("[name=result]", "")
        task, _, asked = task_of(lines[len(lines) // 2])
        for q in (task, asked[40:60].strip() or asked):
            page.fill("[name=q]", q)
            among = [(one[0].lower(), one[2][:300].lower()) for one in map(task_of, lines)]
            expect("task or text", sum(any(q.lower() in text for text in both) for both in among))
        spoken = [text.strip() for one in said_in(lines[-1]) for text in one.splitlines() if len(text.strip()) > 3]
        q = spoken[-1][-20:].strip().lower()
        page.fill("[name=q]", q)
        page.check("[name=deep]")
        hits = sum(any(q in text.lower() for text in said_in(one)) for one in lines)
        until(page, f"document.getElementById('count').textContent.startsWith('{hits:,} of')")
        most["dialogues"] = max(most.get("dialogues", 0), hits)
        page.uncheck("[name=deep]")
        page.fill("[name=q]", "")
        for other, theirs in solved.items():
            if other == row:
                continue
            page.select_option("[name=against]", f"{other}/evaluation")
            both = [(mine, theirs[key]) for key, mine in solved[row].items() if key in theirs]
            for change, wanted in (("mended", [(True, False)]), ("regressed", [(False, True)]),
                                   ("same", [(True, True), (False, False)])):  # fmt: skip
                page.select_option("[name=change]", change)
                expect(change, sum(one in wanted for one in both))
    return most


def test_filter_counts_match_the_jsonl_files(tab: Tab, report: tuple[Path, Path]) -> None:
    most = check_filters(tab, report[0], "rise")
    assert all(most.values()), f"a filter that nothing passes shows nothing: {most}"
    page = tab.open("episodes.html#method=rise&set=iter1/evaluation")
    page.fill("[name=q]", "window.hacked = 1")
    page.check("[name=deep]")
    until(page, "document.getElementById('count').textContent.startsWith('1 of')")
    assert "deep=on" in page.url


def test_opening_a_views_url_restores_the_view(tab: Tab) -> None:
    page = tab.open("episodes.html#method=rise&set=iter1/evaluation&result=s&q=problem")
    counted(page)
    page.click("#list a >> nth=2")
    page.wait_for_selector("#reader h2")
    title, url, count = page.inner_text("#reader h2"), page.url, counted(page)
    again = tab.open(url.rpartition("/")[2])
    again.wait_for_selector("#reader h2")
    assert (again.inner_text("#reader h2"), counted(again)) == (title, count)


def test_hostile_text_is_shown_as_text(tab: Tab) -> None:
    for number, text in enumerate(HOSTILE.values()):
        page = tab.open(f"episodes.html#method=rise&set=base/evaluation&at={number}")
        page.wait_for_selector("#reader .message.assistant")
        assert page.evaluate("window.hacked") is None
        shown = page.evaluate("document.querySelector('#reader .message.assistant .text').textContent")
        visible = "".join(one if one.isprintable() or one == "\n" else f"⟨{ord(one):04X}⟩" for one in text)
        assert shown == visible
        assert page.evaluate("document.querySelector('#reader .message.assistant .who').textContent").isprintable()
        assert page.locator("#reader img, #reader script").count() == 0


def test_a_nodes_tooltip_shows_invisible_characters_by_their_code(tab: Tab) -> None:
    page = tab.open("trees.html#tree=2")
    page.wait_for_selector("#node-1")
    for told in (page.get_attribute("#node-1", "aria-label"), page.get_attribute("#node-1 .node", "title")):
        assert told is not None
        assert told.isprintable()
        assert "⟨202E⟩" in told


def test_a_tree_shows_all_nodes_of_its_file(tab: Tab, report: tuple[Path, Path]) -> None:
    trees = [one for _, one in read_rows(report[0] / "data/agent_r/iter1/trees.jsonl")]
    for number, tree in enumerate(trees):
        page = tab.open(f"trees.html#tree={number}")
        page.wait_for_selector("#nodes")
        assert page.inner_text("#nodes") == f"{len(tree['nodes'])} nodes"
        page.click("#expand")
        until(page, f"document.querySelectorAll('[role=treeitem]').length === {len(tree['nodes'])}")
        assert page.locator("text=cut here").count() >= 1


def test_numbers_keep_their_size(tab: Tab) -> None:
    page = tab.open("index.html")
    shown = [page.evaluate(f"page.short({number})") for number in (1230.4, 1000.4, -2500.3, 2.5e-10, 0.12345, 7)]
    assert shown == ["1230", "1000", "-2500", "2.5e-10", "0.1235", "7"]


@pytest.mark.parametrize("view", ["episodes.html#method=rise&set=base/evaluation", "pairs.html#set=spin/iter1/pairs"])
def test_the_reader_shows_the_newest_choice_even_if_an_earlier_one_arrives_later(
    browser: Browser, tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("library", "pairs"):  # one record in each chunk
        monkeypatch.setattr(f"selfimprove.apps.page.{module}.write_records", partial(write_records, size=1))
    write_rise(tmp_path / "run")
    write_pairs(tmp_path / "run", [("x", "y"), ("x", "z"), ("a", "b")])
    build(tmp_path / "run", tmp_path / "out", "no")
    opened = Tab(browser, tmp_path / "out")
    page = opened.open(view)
    page.wait_for_selector("#list a >> nth=1")
    page.evaluate("""() => {
        const received = page.received;
        page.received = (name, packed) => {
            if (name.endsWith("-0")) window.late = () => received(name, packed);
            else received(name, packed);
        };
    }""")
    ids = [page.inner_text(f"#list a >> nth={place} >> .id span >> nth=0") for place in (0, 1)]
    page.click("#list a >> nth=0")
    until(page, "window.late !== undefined")
    page.click("#list a >> nth=1")
    page.wait_for_selector("#reader h2")
    page.evaluate("window.late()")
    time.sleep(1)
    shown = page.inner_text("#reader h2")
    opened.close()
    assert ids[0] != ids[1]
    assert ids[1].startswith(shown)
    assert opened.wrong == []


def test_a_filter_by_change_needs_another_row(tab: Tab) -> None:
    page = tab.open("episodes.html#method=rise&set=iter1/evaluation")
    counted(page)
    assert page.locator("[name=change]").is_disabled()
    page.select_option("[name=against]", "base/evaluation")
    assert page.locator("[name=change]").is_enabled()


def test_pairs_highlight_their_differences(tab: Tab) -> None:
    page = tab.open("pairs.html#set=spin/iter1/pairs&at=1")
    page.wait_for_selector("#reader ins")
    assert page.locator("#reader ins").all_inner_texts() == ["b"]
    assert page.locator("#reader del").all_inner_texts() == ["x"]


def test_200_000_episodes_and_a_tree_of_5000_nodes_stay_usable(browser: Browser, tmp_path: Path) -> None:
    rows = ("base", "iter1")
    write_rise(tmp_path / "run", rows=("base", "more_sft", "iter1"))
    for row in rows:
        with (tmp_path / f"run/results/rise/{row}/episodes.jsonl").open("w", encoding="utf-8") as file:
            for number in range(EPISODES // len(rows)):
                file.write(rise_row(number, solved=(number % 3 == 0) ^ (row == "base" and number % 7 == 0)))
    write_trees(tmp_path / "run", [make_tree(branches=NODES // 25, depth=25)])
    began = time.monotonic()
    build(tmp_path / "run", tmp_path / "out")
    took: dict[str, Any] = {"build seconds": round(time.monotonic() - began, 1)}
    took["report MB"] = round(
        sum(one.stat().st_size for one in (tmp_path / "out").rglob("*") if one.is_file()) / 1e6, 1
    )
    opened = Tab(browser, tmp_path / "out")
    for view in ("index.html", "episodes.html", "trees.html"):
        page = opened.open(view)
        until(page, "performance.getEntriesByName('first-contentful-paint').length")
        took[f"{view}: first paint, ms"] = round(
            page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        )
    began = time.monotonic()
    page = opened.open("episodes.html#method=rise&set=iter1/evaluation")
    assert counted(page) == EPISODES // len(rows)
    took["index loaded, ms"] = round(1000 * (time.monotonic() - began))
    for name, value in (("result", "s"), ("against", "base/evaluation"), ("change", "mended"), ("order", "n")):
        page.select_option(f"[name={name}]", value)
        took[f"filter {name}, ms"] = round(float(page.get_attribute("#filters", "data-milliseconds") or "nan"))
    page.fill("[name=q]", "problem-7")
    took["filter text, ms"] = round(float(page.get_attribute("#filters", "data-milliseconds") or "nan"))
    wanted = [
        n for n in range(EPISODES // len(rows)) if n % 3 == 0 and n % 7 == 0 and f"problem-{n}".startswith("problem-7")
    ]
    assert counted(page) == len(wanted)
    began = time.monotonic()
    page = opened.open("trees.html")
    page.wait_for_selector("#nodes")
    took["tree shown, ms"] = round(1000 * (time.monotonic() - began))
    assert page.inner_text("#nodes") == f"{NODES + 1} nodes"
    began = time.monotonic()
    page.click("#expand")
    until(page, f"document.querySelectorAll('[role=treeitem]').length === {NODES + 1}")
    took["all nodes opened, ms"] = round(1000 * (time.monotonic() - began))
    page.screenshot(path=PICTURES / "large-tree.png")
    opened.close()
    print(json.dumps(took, indent=1))
    (PICTURES / "measured.json").write_text(json.dumps(took, indent=1))
    assert opened.wrong == []


@pytest.fixture(scope="module")
def smoke() -> Path:
    """A complete run of the smoke profile. Its folder is kept, so that DVC next time runs only what has changed."""
    folder = copy_repo(PICTURES / "run")
    path = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    run_in(folder, "python", "-m", "selfimprove.pipeline.warm", "dvc", "repro", "report", PATH=path, timeout=3600)
    return folder


@pytest.mark.parametrize("which", ["smoke", "RUN"])
def test_the_report_of_a_real_run_opens(
    which: str, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if which == "RUN" and not os.environ.get("PAGE_RUN"):
        pytest.skip("make test-backends-page RUN=folder names a run")
    run = request.getfixturevalue("smoke") if which == "smoke" else Path(os.environ["PAGE_RUN"])
    built = build(run, tmp_path / "out")
    assert built.problems == []
    opened = Tab(browser, tmp_path / "out")
    for number, (view, _) in enumerate(VIEWS):
        see(opened.open(view), f"{which}-{number:02}-{view.partition('.')[0]}")
    methods = [path.name for path in sorted((run / "results").iterdir()) if any(path.glob("*/episodes.jsonl"))]
    assert len(methods) == 4 or which == "RUN"
    for method in methods:
        check_filters(opened, run, method)
        page = opened.open(f"episodes.html#method={method}")
        counted(page)
        for place, one in enumerate(page.locator("[name=set] option").all()):
            name = one.get_attribute("value")
            page = opened.open(f"episodes.html#method={method}&set={name}&order=p")
            assert counted(page) > 0, name
            page.click("#list a >> nth=0")
            page.wait_for_selector("#reader h2")
            if place == 0 and method != "reflect_rl":  # its actions have recorded values but no token ids
                page.click("#reader .tools button")
                page.wait_for_selector("#reader .token")
    for path in sorted((run / "data").glob("*/*/trees.jsonl")):
        page = opened.open(f"trees.html#set={path.parts[-2]}")
        assert counted(page) == sum(1 for _ in read_rows(path))
        nodes = sum(len(tree["nodes"]) for _, tree in read_rows(path))
        assert f"{nodes:,} nodes" in page.inner_text("#count")
    page = opened.open("pairs.html")
    for name in [one.get_attribute("value") for one in page.locator("[name=set] option").all()]:
        page = opened.open(f"pairs.html#set={name}&at=0")
        page.wait_for_selector("#reader h2")
    opened.close()
    assert opened.wrong == []


def test_the_live_view_follows_a_stage(browser: Browser, report: tuple[Path, Path], tmp_path: Path) -> None:
    write_scratch(report[0])
    command = [sys.executable, "-m", "selfimprove.apps.page.watch", "--port", "8917"]
    server = subprocess.Popen([*command, "--run", report[0], "--out", tmp_path / "out"])
    try:
        opened = Tab(browser, tmp_path)
        while True:
            try:
                opened.page.goto("http://127.0.0.1:8917/")
                break
            except Error:
                assert server.poll() is None
                time.sleep(0.1)
        page = opened.page
        page.wait_for_selector("#stages progress")
        until(page, "document.querySelector('#stages .drawing svg') !== null")
        assert page.locator("#stages h3").all_inner_texts() == ["rise-finetune@iter1"]
        assert "second" in page.inner_text("#stages")
        page.click("text=Latest output")
        with (report[0] / ".scratch/logs/rise-finetune@iter1.log").open("a") as log:
            log.write("rise-finetune@iter1: 4/8\n")
        until(page, "document.querySelector('#stages progress').value === 4")
        assert page.get_attribute("#stages details", "open") is None
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"  # an update leaves the keyboard's focus
        assert page.inner_text("[role=status]") == "Running: rise-finetune@iter1"  # read aloud when stages change
        page.screenshot(path=PICTURES / "live.png", full_page=True)
        page.click("text=RISE")  # the report is built in the meantime
        page.wait_for_selector("#results")
        opened.close()
    finally:
        server.terminate()
        server.wait(PATIENCE)
    assert [one for one in opened.wrong if "503" not in one] == []


def test_the_scripts_pass_the_type_checker() -> None:
    files = sorted(Path("selfimprove/apps/page/static").glob("*.js"))
    options = [
        "--noEmit",
        "--checkJs",
        "--allowJs",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
    ]
    done = subprocess.run(
        [TSC, *options, "--moduleDetection", "legacy", *files], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert done.returncode == 0
