"""A tab of Debian's Chromium in which the report is opened from disk, and what the tests of the page do in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from selfimprove.apps.page.build import build
from selfimprove.apps.page.chunks import write_chunk
from tests.support.repo_copy import ROOT
from tests.support.reports import HOSTILE, make_tree, write_pairs, write_reinforcement, write_rise, write_trees

PATIENCE = 600
"""Seconds to wait for something to appear in the browser."""

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PICTURES = ROOT / "build/page"
LOCAL = ("file:", "data:", "http://127.0.0.1:")


@contextmanager
def opened_browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium; on Debian: apt-get install chromium")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * PATIENCE)
        yield opened
        opened.close()


def write_report(root: Path) -> tuple[Path, Path]:
    """(run, report) of a small run whose models write text that could break out of a page."""
    texts = dict(enumerate([*HOSTILE.values(), "long " * 200_000]))
    write_rise(root / "run", texts=texts, query="".join(HOSTILE.values()))
    named = [HOSTILE["handler"], HOSTILE["bidi"]]
    write_trees(
        root / "run", [make_tree(), *(make_tree(branches=5, number=n, text=one) for n, one in enumerate(named, 1))]
    )
    write_pairs(root / "run", [(HOSTILE["script"], HOSTILE["bidi"]), ("a b c", "a x c")])
    write_reinforcement(root / "run")
    build(root / "run", root / "out")
    write_chunk(root / "out/data", "rise-vocabulary", {"1": "1", "2": " +", "3": " 2"})  # otherwise a model's
    return root / "run", root / "out"


class Tab:
    """A page that records its errors, warnings and requests to other hosts."""

    def __init__(self, browser: Browser, out: Path, width: int = 1280, scheme: Any = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.out, self.wrong = out, list[str]()
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: None if asked.url.startswith(LOCAL) else self.wrong.append(asked.url))

    def open(self, view: str) -> Page:
        self.page.goto("about:blank")
        self.page.goto((self.out.resolve() / view.partition("#")[0]).as_uri() + view[len(view.partition("#")[0]) :])
        return self.page

    def close(self) -> None:
        self.context.close()


def until(page: Page, expression: str) -> None:
    """Poll until the expression is true. Playwright's own wait evaluates strings in the page, which its CSP forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{page.url}: not true within {PATIENCE} s: {expression}"
        time.sleep(0.05)


def see(page: Page, name: str) -> None:
    """Scroll every chart into view, then save a screenshot."""
    for place in range(page.locator("figure[data-chart]").count()):
        figure = f"document.querySelectorAll('figure[data-chart]')[{place}]"
        page.evaluate(f"{figure}.scrollIntoView({{behavior: 'instant'}})")
        until(page, f"{figure}.querySelector('.drawing svg') !== null")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def counted(page: Page) -> int:
    until(page, "/\\d/.test(document.getElementById('count').textContent)")
    return int(page.inner_text("#count").split(" ")[0].replace(",", ""))
