"""An arena at smoke size: all methods with the same environment, the same start and one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.report.arena import arena
from selfimprove.apps.report.table import read_summaries
from selfimprove.core.overlay import merge
from selfimprove.pipeline.params import METHODS
from tests.methods.cells import STAGES, overlay
from tests.pipeline.workbench import Forks, copy_code, write_params

pytestmark = pytest.mark.slow

PRETRAINED = Path(__file__).resolve().parents[2] / "models/pretrained"
FIRST = {"reflect_rl": ("data", "generate", "convert")}
"""Stages that run before the base; ("data",) for the other methods."""
SPLIT = {"demonstrations": 8, "train": 4, "dev": 1, "test": 3}
WHOLE = {"train": 12, "dev": 1, "test": 3}


def params_of(env: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for method in METHODS:
        more: dict[str, Any] = {"tasks": SPLIT if method in ("rise", "agent_r") else WHOLE}
        merge(params, overlay(method, env, **more))
        template = "react" if method == "spin" else None
        for engine in params[method]["engines"].values():
            if "context" in engine:
                engine["context"] = 1024
        merge(params, {"base": {method: {"model": str(PRETRAINED), "chat_template": template}}})
    return params


@pytest.fixture(scope="module")
def folder(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the stages of all four methods have run."""
    folder = tmp_path_factory.mktemp("arena")
    copy_code(folder)
    write_params(folder, params_of({"name": "textcraft"}))

    def run(script: str, item: str = "") -> None:
        ran = forks.run(folder, script, item)
        assert ran.code == 0, ran.stderr

    for method in METHODS:
        for name in FIRST.get(method, ("data",)):
            run(f"{method}.{name}")
    for method in METHODS:
        for one in STAGES[method].split():
            name, _, item = one.partition("@")
            if name not in FIRST.get(method, ("data",)):
                run(name if name == "base" else f"{method}.{name}", method if name == "base" else item)
    return folder


def test_all_four_methods_start_from_byte_identical_models(folder: Path) -> None:
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert len({(folder / f"models/{method}/start" / file).read_bytes() for method in METHODS}) == 1


def test_one_table_compares_all_methods_on_the_same_tasks(folder: Path) -> None:
    found = arena(folder, read_summaries(root=folder))
    assert found is not None
    assert (found["env"], found["tasks"], found["same_start"]) == ("textcraft", 3, True)
    assert list(found["methods"]) == list(METHODS)
    assert len(found["between"]) == 6
    for method, one in found["methods"].items():
        assert one["values"].keys() >= ({"last"} if method == "reflect_rl" else {"base", "last"})
        assert one["tokens"] > 0
        assert one["episodes"] > 0
        assert one["generated"] > 0
        assert one["seconds"] > 0
