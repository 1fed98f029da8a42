"""Every cell of the table in docs/environments.md that is possible runs, from the data to the report."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.page.library import write_library
from selfimprove.apps.page.pairs import write_pairs
from selfimprove.apps.page.run import Run
from selfimprove.apps.page.trees import write_trees
from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows
from selfimprove.core.sources import SOURCES, load_sources
from selfimprove.envs.matrix import PAGE, cells, with_table
from selfimprove.envs.params import AnswerParams
from selfimprove.envs.registry import DEFAULTS, named
from selfimprove.pipeline.params import load_section
from selfimprove.pipeline.sections import METHOD_SCHEMAS
from tests.methods.cells import overlay, play_cell
from tests.pipeline.workbench import Forks, copy_code
from tests.support.profiles import profile
from tests.support.repo_copy import ROOT
from tests.support.worlds import ELSEWHERE, keys_of, problem_files

CELLS = cells()
DEFAULT = [*DEFAULTS.items(), ("spin", "encyclopedia")]
"""What ``test_end_to_end.py`` runs, with every control."""
PUBLISHED = ("spin", "math")
"""Reads the declared file; here it is one that the test declares in its place."""
POSSIBLE = [
    place for place, cell in CELLS.items() if cell.possible and place[1] not in ELSEWHERE and place not in DEFAULT
]
ROWS = {
    "rise": ["base", "iter1"],
    "agent_r": ["base", "iter1"],
    "reflect_rl": ["reflect_rl"],
    "spin": ["base", "iter0"],
}


def test_the_page_shows_what_the_registry_declares() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == with_table(page), "run `make docs`"


def params_of(method: str, name: str, folder: Path) -> dict[str, Any]:
    """The smallest run of a cell; files are written to ``folder``."""
    answers = name in named(AnswerParams)
    more: dict[str, Any] = {}
    if answers and method == "spin":
        more = {"prompt": {"format": "reply"}, "tasks": {"source": "math" if name == "math" else "encyclopedia"}}
    if name == "math" and method == "rise":
        more = {"tasks": {"source": "files", "files": problem_files(folder)}}
    params = overlay(method, keys_of(name, folder, attempts=answers and method == "agent_r"), **more)
    if answers and method == "spin":
        params["tokenizer"] = {"spin": {"template": "plain"}}
    return params


def declared_math(folder: Path, mirror: Path) -> dict[str, str]:
    """Declare a small file as MATH's in the copy of the code; the variable by which the stage finds it."""
    if not (folder / SOURCES).exists():
        copy_code(folder)
    (declared,) = load_sources(ROOT / SOURCES)["math"].files
    small = mirror / declared.path
    small.parent.mkdir()
    small.write_bytes(b"".join(Path(path).read_bytes() for path in problem_files(mirror).values()))
    text = (ROOT / SOURCES).read_text(encoding="utf-8")
    assert text.count(declared.sha256) == 1
    (folder / SOURCES).write_text(
        text.replace(declared.sha256, sha256(small.read_bytes()).hexdigest()), encoding="utf-8"
    )
    return {"DATA_MIRROR": str(mirror)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one cell runs after the other."""
    return tmp_path_factory.mktemp("cells")


@pytest.mark.parametrize(("method", "name"), POSSIBLE, ids=[" on ".join(place) for place in POSSIBLE])
def test_a_cell_runs_to_its_report(forks: Forks, folder: Path, tmp_path: Path, method: str, name: str) -> None:
    env = declared_math(folder, tmp_path) if (method, name) == PUBLISHED else {}
    summary = play_cell(forks, folder, method, params_of(method, name, tmp_path), env)
    assert summary["order"] == ROWS[method]
    assert all(metrics["metrics"] for metrics in summary["rows"].values())
    check_page(folder, method, tmp_path)


def check_page(folder: Path, method: str, out: Path) -> None:
    """The page has every episode, example, tree and pair of the cell, and finds none damaged."""
    run = Run(folder)
    sets = write_library(run, method, out).sets
    assert {one["row"] for one in sets if one["phase"] == "evaluation"} >= set(ROWS[method])
    for one in sets:
        assert one["size"] == sum(1 for _ in read_rows(folder / one["path"])) or one["phase"] == "reinforcement"
    paired = {"spin": {"spin/iter0/pairs"}, "reflect_rl": {"reflect_rl/negatives"}}
    assert {key for key, _ in write_pairs(run, out)} >= paired.get(method, set())
    assert bool(write_trees(run, out)) == (method == "agent_r")
    assert run.problems == []


@pytest.mark.parametrize("method", ROWS)
def test_a_mixture_runs_to_its_report_which_has_the_metrics_of_each(
    forks: Forks, folder: Path, tmp_path: Path, method: str
) -> None:
    mixed = [{**keys_of(name, tmp_path), "share": 0.5} for name in ("taxi", "encyclopedia")]
    slips = {"engines": {"expert": {"error_rate": 0.1}}, "iterations": {"iter1": {"generate": {"max_depth": 20}}}}
    env: Any = {"name": "mixture", "parts": mixed, "labels": "single"} if method == "reflect_rl" else mixed
    summary = play_cell(forks, folder, method, overlay(method, env, **(slips if method == "agent_r" else {})))
    for row in summary["rows"].values():
        assert {*row["environments"]} == {"taxi", "encyclopedia"}
        assert all(metrics for metrics in row["environments"].values())


IMPOSSIBLE = [place for place, cell in CELLS.items() if not cell.possible]


@pytest.mark.parametrize(("method", "name"), IMPOSSIBLE, ids=[" on ".join(place) for place in IMPOSSIBLE])
def test_a_cell_that_cannot_be_is_refused_with_what_it_lacks_and_who_has_it(
    tmp_path: Path, method: str, name: str
) -> None:
    params = profile("smoke")
    params[method]["env"] = keys_of(name, tmp_path)
    with pytest.raises(UserError) as refused:
        load_section(params, method, METHOD_SCHEMAS[method], "params.yaml")
    said = str(refused.value)
    assert said.startswith(f"params.yaml: {method}.env: name: {name} has {CELLS[method, name].said}, which this method")
    others = [other for player, other in CELLS if player == method and CELLS[player, other].possible]
    others.remove("mixture")  # a list of them
    assert all(other in said.partition("; choose ")[2] for other in others)
    assert "\n" not in said
    assert said.endswith(".")


def test_some_cell_cannot_be() -> None:
    assert ("reflect_rl", "gsm8k") in IMPOSSIBLE
