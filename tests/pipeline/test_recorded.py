"""A stage whose params are edited while it runs is not recorded, whether make or DVC itself has started it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.recorded import check_unedited, planned
from tests.pipeline.workbench import ROOT, copy_code
from tests.support.repo_copy import run

GRAPH = """
stages:
  one: {cmd: x, params: [run.seed, a.b], outs: [one]}
  each:
    foreach: ${a.rows}
    do: {cmd: y, params: [run.seed, "a.rows.${key}"], outs: ["${key}"]}
  none: {cmd: z, outs: [none]}
"""
BEFORE = {"run": {"seed": 1, "threads": 2}, "a": {"b": {"c": 1}, "rows": {"x": {"lr": 1}, "y": {"lr": 1}}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("run: {seed: 1, threads: 3}\na: {b: {c: 1}, rows: {x: {lr: 1}, y: {lr: 1}}, new: 1}", {}),
        ("run: {seed: 2, threads: 2}\na: {b: {c: 1}, rows: {x: {lr: 1}, y: {lr: 1}}}",
         {"one": "run.seed", "each@x": "run.seed", "each@y": "run.seed"}),
        ("run: {seed: 1}\na: {b: {c: 2}, rows: {x: {lr: 1}, y: {lr: 2}}}", {"one": "a.b", "each@y": "a.rows.y"}),
        ("run: {seed: 1}\na: {b: {c: 1}, rows: {y: {lr: 1}}}", {"each@x": "a.rows.x"}),
        ("run: {seed: 1}\na: 5", {"one": "a.b", "each@x": "a.rows.x", "each@y": "a.rows.y"}),
        ("run: [", {"one": "run.seed", "each@x": "run.seed", "each@y": "run.seed"}),
    ],
    ids=["nothing it reads", "seed", "values", "removed", "other kind", "broken"],
)  # fmt: skip
def test_an_edit_is_noticed_by_the_stages_that_read_the_edited_key(
    folder: Path, text: str, edited: dict[str, str]
) -> None:
    (folder / "params.yaml").write_text(text)
    for stage in ("one", "each@x", "each@y", "none"):
        if stage not in edited:
            check_unedited(stage, BEFORE)
        else:
            with pytest.raises(UserError, match=f"^{edited[stage]} was edited in params.yaml while the stage ran"):
                check_unedited(stage, BEFORE)


def test_the_keys_of_every_stage_are_those_that_dvc_records() -> None:
    found = dict(planned(read_yaml(ROOT / "dvc.yaml")["stages"], read_yaml(ROOT / "params.yaml")))
    with Repo(str(ROOT)) as repo:
        recorded = {
            stage.name: sorted(key for dependency in stage.deps for key in getattr(dependency, "params", ()))
            for stage in repo.index.stages
        }
    assert {stage: sorted(keys) for stage, keys in found.items()} == recorded


SCRIPT = """
from pathlib import Path
from selfimprove.core.params import Section
from selfimprove.pipeline.stage import stage


class Anything(Section, extra="allow"):
    pass


@stage("one", "base", Anything)
def main(stage):
    stage.output("one").write_text(repr(stage.params.a))
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("a: 1", "a: 2"))  # as somebody does while the stage runs


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "dvc", [["dvc"], [sys.executable, "-m", "selfimprove.pipeline.dvc_command"]], ids=["dvc", "make"]
)
def test_a_stage_whose_params_were_edited_is_not_recorded_and_runs_again(tmp_path: Path, dvc: Sequence[str]) -> None:
    copy_code(tmp_path)
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, "dvc", "init", "--quiet")
    (tmp_path / "stages/one.py").write_text(SCRIPT)
    (tmp_path / "params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {a: 1}\n")
    one = {"cmd": f"{sys.executable} -m stages.one", "params": ["run.seed", "base.a"], "outs": ["one"]}
    YAML().dump({"stages": {"one": one}}, tmp_path / "dvc.yaml")
    edited = run(tmp_path, *dvc, "repro", check=False, PYTHONPATH=str(tmp_path))
    assert edited.returncode != 0
    assert "one: base.a was edited in params.yaml while the stage ran, so its outputs are not recorded" in edited.stderr
    assert not (tmp_path / "dvc.lock").exists()
    run(tmp_path, *dvc, "repro", PYTHONPATH=str(tmp_path))
    recorded = YAML(typ="safe").load(tmp_path / "dvc.lock")["stages"]["one"]["params"]["params.yaml"]
    assert recorded == {"base.a": 2, "run.seed": 1}
    assert (tmp_path / "one").read_text() == "2"
