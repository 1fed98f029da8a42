"""The graph in dvc.yaml, as DVC resolves it: complete, small, and with the same shape for every method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage

from selfimprove.apps.report.dag import needs, picture
from selfimprove.core.errors import UserError
from selfimprove.core.git import git
from selfimprove.pipeline.closure import manifests, scripts
from selfimprove.pipeline.overall import stage_names
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.verify import KEPT_BY_GIT

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"data", "generate", "convert", "finetune", "evaluate", "report"}


@pytest.fixture(scope="module")
def stages() -> list[PipelineStage]:
    with Repo(str(ROOT)) as repo:
        return list(repo.index.stages)


def test_every_dependency_of_a_stage_is_a_file_that_git_does_not_ignore_or_is_written_by_another_stage(
    stages: list[PipelineStage],
) -> None:
    code, listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT)
    kept = {parent for name in listed.split("\0") for parent in (ROOT / name, *(ROOT / name).parents)}
    made = [(stage, Path(out.fs_path)) for stage in stages for out in stage.outs]
    for stage in stages:
        outs = [out for maker, out in made if maker is not stage]
        for path in (Path(dep.fs_path) for dep in stage.deps):
            part = path.relative_to(ROOT)
            if part.parts[0] in ("models", "results") or (part.parts[0] == "data" and len(part.parts) > 2):
                # A folder of results is accepted if stages write below it.
                assert any(path == out or out in path.parents or path in out.parents for out in outs), (stage, part)
            else:
                assert path.exists(), (stage, part)
                assert code != 0 or path in kept, (stage, part)  # an unpacked archive has no git


def test_every_stage_depends_on_the_run_s_seed_threads_and_kernels(stages: list[PipelineStage]) -> None:
    """Otherwise DVC would restore the outputs of other kernels from its cache."""
    for stage in stages:
        named = {param for dep in stage.deps if isinstance(dep, ParamsDependency) for param in dep.params}
        assert stage.name == "inputs" or named >= {"run.seed", "run.threads", "run.kernels"}, stage


def test_only_rise_generate_depends_on_the_settings_of_the_teacher(stages: list[PipelineStage]) -> None:
    asking = set()
    for stage in stages:
        named = [param for dep in stage.deps if isinstance(dep, ParamsDependency) for param in dep.params]
        if any("rise.engines.teacher".startswith(param) for param in named if param.startswith("rise.engines")):
            asking.add(stage.name.partition("@")[0])
    assert asking == {"rise-generate"}


def test_the_outputs_that_git_keeps_instead_of_dvc_are_the_headline_metrics(stages: list[PipelineStage]) -> None:
    uncached = [Path(out.fs_path).relative_to(ROOT) for stage in stages for out in stage.outs if not out.use_cache]
    assert sorted(uncached) == sorted(KEPT_BY_GIT / f"{method}.json" for method in METHODS)
    for path in uncached:
        assert git("check-ignore", "--no-index", "--quiet", str(path), folder=ROOT)[0] != 0


def test_no_code_of_a_stage_is_ignored_by_dvc() -> None:
    with Repo(str(ROOT)) as repo:
        lines = {line for text in manifests(scripts(ROOT), ROOT).values() for line in text.splitlines()}
        for path in {line.split("  ")[1] for line in lines}:
            assert not repo.dvcignore.is_ignored_file(str(ROOT / path)), path


def test_the_default_profile_s_graph_stays_small(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").symlink_to(ROOT / "dvc.yaml")
    (tmp_path / "params.yaml").symlink_to(ROOT / "profiles/default.yaml")  # params.yaml may have more rows
    assert len(stage_names(["report"], tmp_path)) <= 95  # DVC takes time for each, even if all are up to date


def test_the_stage_names_counted_for_progress_are_those_of_dvc(stages: list[PipelineStage]) -> None:
    assert sorted(stage_names(["report"], ROOT)) == sorted(stage.addressing for stage in stages)


def test_a_method_s_graph_fits_110_columns_and_lists_every_stage_after_those_it_needs() -> None:
    found = needs()
    for method in METHODS:
        lines = picture(method, found).splitlines()
        assert max(map(len, lines)) <= 110
        shown = [line.split()[0] for line in lines[2:] if not line.startswith("     ")]
        mine = {name for name in found if name.startswith(f"{method}-")} | {f"base@{method}"}
        assert sorted(shown) == sorted(mine)
        for place, name in enumerate(shown):
            assert mine.intersection(found[name]) <= set(shown[:place]), name
        assert f"{method}-report" == shown[-1]
    assert "rise-evaluate@{base,iter1,iter2,more_sft,single_turn,unweighted}" in picture("rise", found)
    words = set(re.findall(r"\w+", picture("reflect_rl", found)))
    assert {"no_curriculum", "policy_positive", "reinforce"} <= words
    assert words.isdisjoint({"no_cur", "riculum", "_positive", "rl_", "force"})  # no name is broken at a line's end


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_same_steps_under_the_same_names(stages: list[PipelineStage], method: str) -> None:
    names = {stage.name.partition("@")[0] for stage in stages}
    assert {f"{method}-{step}" for step in STEPS} <= names
    assert f"base@{method}" in {stage.name for stage in stages}


def test_a_missing_dvc_yaml_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^dvc\.yaml does not exist; run this in the repository's root"):
        needs()


def test_a_damaged_config_of_dvc_is_reported_instead_of_dvc_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(UserError, match=r"DVC cannot read its config \(.*\); fix \.dvc/config or"):
        needs()
