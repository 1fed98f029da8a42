"""Every profile validates and gives a graph that DVC accepts, with a stage for each step of each of its entries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove.pipeline.check import params_faults
from tests.support.profiles import NAMES, profile
from tests.support.repo_copy import ROOT, copy_repo

PASSES: dict[str, tuple[str, ...]] = {"iterations": ("generate", "convert"), "rows": ("finetune", "evaluate")}
STEPS: dict[str, dict[str, tuple[str, ...]]] = {
    "rise": PASSES,
    "agent_r": PASSES,
    "reflect_rl": {"models": ("finetune",), "iterations": ("reinforce",), "rows": ("evaluate",), "agents": ("agent",)},
    "spin": PASSES,
}
"""For each key of a method's section: the steps that have a stage for each of its entries."""

SINGLE: dict[str, tuple[str, ...]] = {
    "rise": (),
    "agent_r": ("beginnings",),
    "reflect_rl": ("generate", "convert"),
    "spin": (),
}
"""The steps that have one stage, beside data and report."""


@pytest.fixture(scope="module")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which no stage has run."""
    return copy_repo(tmp_path_factory.mktemp("unrun"))


def test_the_profiles_in_the_readme_s_table_exist() -> None:
    _, _, table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| profile | description | hardware |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    listed = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]
    assert listed
    assert all(listed), rows
    assert {name for names in listed for name in names} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_validates_and_gives_a_graph_with_a_stage_for_each_of_its_entries(unrun: Path, name: str) -> None:
    params = profile(name)  # what `make use` writes, as DVC reads it (test_profiles)
    assert list(params_faults(params)) == []  # `make check` also checks GPUs, packages and API keys
    YAML(typ="safe").dump(params, unrun / "params.yaml")
    with Repo(str(unrun)) as repo:
        repo.index.check_graph()
        planned = {stage.name for stage in repo.index.stages}
    expected = {"inputs", "report"}
    for method, steps in STEPS.items():
        expected |= {f"base@{method}", *(f"{method}-{step}" for step in ("data", "report", *SINGLE[method]))}
        for key, each in steps.items():
            expected |= {f"{method}-{step}@{entry}" for step in each for entry in params[method][key]}
    assert planned == expected
