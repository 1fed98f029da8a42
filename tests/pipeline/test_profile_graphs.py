"""Every profile validates and gives a graph that DVC accepts, with the stages of each of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove.pipeline.check import params_faults
from tests.support.profiles import NAMES, profile
from tests.support.repo_copy import copy_repo

METHODS = ("rise", "agent_r")


@pytest.fixture(scope="module")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which no stage has run."""
    return copy_repo(tmp_path_factory.mktemp("unrun"))


def test_the_profiles_named_in_the_readme_exist() -> None:
    rise = {"gsm8k-cpu", "math-cpu", "rise-llama2-7b", "rise-mistral-7b-selfdistill"}
    assert {"default", "smoke", "agent-r-llama3.1-8b"} | rise <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_validates_and_gives_a_graph_that_dvc_accepts(unrun: Path, name: str) -> None:
    params = profile(name)  # what `make use` writes, as DVC reads it (test_profiles)
    assert list(params_faults(params)) == []  # `make check` also checks GPUs, packages and API keys
    YAML(typ="safe").dump(params, unrun / "params.yaml")
    with Repo(str(unrun)) as repo:
        repo.index.check_graph()
        planned = {stage.name for stage in repo.index.stages}
    for method in METHODS:
        rows = [f"{step}@{row}" for step in ("generate", "convert") for row in params[method]["iterations"]]
        rows += [f"{step}@{row}" for step in ("finetune", "evaluate") for row in params[method]["rows"]]
        assert {f"base@{method}", *(f"{method}-{stage}" for stage in ("data", "report", *rows))} <= planned
    assert "report" in planned
