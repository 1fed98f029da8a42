"""The links, anchors and repository files that the pages mention exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from selfimprove.core.yaml import read_yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = (
    "selfimprove|stages|tests|bench|docs|profiles|requirements|core|models|engines|envs|training|methods|interop|apps"
)
FILE = re.compile(rf"(?<![\w/.*{{}}-])(?:{FOLDERS}|pipeline)/[\w/-]+\.(?:py|md|yaml|lock|txt)\b")
EXAMPLES = {"engines/name.py", "profiles/mine.yaml", "selfimprove/envs/counter.py"}
"""Files that the reader is meant to create."""


def headings(page: Path) -> set[str]:
    """The anchors that common hosts generate for a page's headings."""
    found = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            text = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(text.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_files_and_headings(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in headings(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_files_mentioned_on_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").partition("# Modules that moved")[0]
    missing = [
        name
        for name in FILE.findall(text)
        if name not in EXAMPLES and not (ROOT / name).exists() and not (ROOT / "selfimprove" / name).exists()
    ]
    assert missing == []


def test_make_help_lists_every_target_named_in_the_readme() -> None:
    menu = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"^    make ([a-z][\w/-]*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))
    assert named
    assert [name for name in sorted(named) if not re.search(rf"^  make {re.escape(name)}\s", menu, re.M)] == []


def test_the_citation_names_every_paper_that_a_method_s_page_opens_with() -> None:
    opening = "".join(
        (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n## ")[0]
        for page in ("rise.md", "agent-r.md", "reflect-rl.md", "spin.md")
    )
    papers = set(re.findall(r"https://arxiv\.org/abs/[\d.]+\d", opening))
    assert len(papers) == 5  # SPIN's page has two
    citation = read_yaml(ROOT / "CITATION.cff")
    assert papers == {reference["url"] for reference in citation["references"]}
