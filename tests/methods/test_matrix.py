"""Every possible cell of the table in docs/environments.md runs from data to report."""

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
"""Cells that ``test_end_to_end.py`` runs, with every control."""
PUBLISHED = ("spin", "math")
"""This cell reads the declared file; the test declares a small file in its place."""
POSSIBLE = [
    place for place, cell in CELLS.items() if cell.possible and place[1] not in ELSEWHERE and place not in DEFAULT
]
ROWS = {
    "rise": ["base", "iter1"],
    "agent_r": ["base", "iter1"],
    "reflect_rl": ["reflect_rl"],
    "spin": ["base", "iter0"],
}


def test_the_table_in_the_documentation_matches_the_registry() -> None:
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
    """Declare a small file as MATH's in the copy of the code; return the environment variable that points to it."""
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
    """The folder in which the cells run, one after another."""
    return tmp_path_factory.mktemp("cells")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), POSSIBLE, ids=[" on ".join(place) for place in POSSIBLE])
def test_a_possible_cell_runs_from_data_to_report(
    forks: Forks, folder: Path, tmp_path: Path, method: str, name: str
) -> None:
    env = declared_math(folder, tmp_path) if (method, name) == PUBLISHED else {}
    summary = play_cell(forks, folder, method, params_of(method, name, tmp_path), env)
    assert summary["order"] == ROWS[method]
    assert all(metrics["metrics"] for metrics in summary["rows"].values())
    check_page(folder, method, tmp_path)


def check_page(folder: Path, method: str, out: Path) -> None:
    """The page has every episode, example, tree and pair of the cell, and reports none as damaged."""
    run = Run(folder)
    sets = write_library(run, method, out).sets
    assert {one["row"] for one in sets if one["phase"] == "evaluation"} >= set(ROWS[method])
    for one in sets:
        assert one["size"] == sum(1 for _ in read_rows(folder / one["path"])) or one["phase"] == "reinforcement"
    paired = {"spin": {"spin/iter0/pairs"}, "reflect_rl": {"reflect_rl/negatives"}}
    assert {key for key, _ in write_pairs(run, out)} >= paired.get(method, set())
    assert bool(write_trees(run, out)) == (method == "agent_r")
    assert run.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ROWS)
def test_the_report_of_a_mixture_has_the_metrics_of_each_environment(
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
def test_an_impossible_cell_is_refused_with_the_reason_and_the_possible_environments(
    tmp_path: Path, method: str, name: str
) -> None:
    params = profile("smoke")
    params[method]["env"] = keys_of(name, tmp_path)
    with pytest.raises(UserError) as refused:
        load_section(params, method, METHOD_SCHEMAS[method], "params.yaml")
    said = str(refused.value)
    assert said.startswith(f"params.yaml: {method}.env: name: {name} has {CELLS[method, name].said}, which this method")
    others = [other for player, other in CELLS if player == method and CELLS[player, other].possible]
    others.remove("mixture")  # written as a list instead of a name
    assert all(other in said.partition("; choose ")[2] for other in others)
    assert "\n" not in said
    assert said.endswith(".")


def test_reflect_rl_on_gsm8k_is_an_impossible_cell() -> None:
    assert ("reflect_rl", "gsm8k") in IMPOSSIBLE
