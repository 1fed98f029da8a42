"""A sweep's grid: its meaning, and what is refused before anything starts. tests/test_end_to_end.py runs a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.tools.cache import CachedSearch
from selfimprove.pipeline import clean, sweep
from selfimprove.pipeline.jobs import gpu_shares
from selfimprove.pipeline.layout import rewritten
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.sweep import GridPoint, parse_grid, with_settings
from tests.support.repo_copy import ROOT, copy_repo, environment, run
from tests.support.sentences import refused_with


def test_a_grid_expands_to_every_combination_and_its_values_are_yaml() -> None:
    assert parse_grid("run.seed=17,18 rise.rows.iter2.train.lr=1e-3") == [
        {"run.seed": 17, "rise.rows.iter2.train.lr": 0.001},
        {"run.seed": 18, "rise.rows.iter2.train.lr": 0.001},
    ]
    assert parse_grid("a.models=[x,y],[y,z]") == [{"a.models": ["x", "y"]}, {"a.models": ["y", "z"]}]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("", "GRID is empty"),
        ("run.seed", "'run.seed' is not key=value,value"),
        ("run.seed=17,", "is not key=value,value"),
        ("run.seed=17,,18", "is not key=value,value"),
        ("=17", "is not key=value,value"),
        ("run.seed=17 run.seed=18", "run.seed occurs twice"),
        ("run.seed=17,17", "run.seed has the same value twice"),
        ("run.seed={", "is not valid YAML"),
        ("run.seed=0x" + "1" * 5000, "is not valid YAML"),
        ("run.seed=!!bool,2", "is not valid YAML"),
        ("rise.env" + ".b" * 3000 + "=1", "has more than 100 parts"),
        ("run.seed=2026-13-45", "is not valid YAML"),
        (" ".join(f"k{n}=1,2" for n in range(10)), "GRID has more than 1000 points"),
        (" ".join(f"k{n}=1,2" for n in range(200)), "GRID has more than 1000 points"),
    ],
)
def test_an_invalid_grid_is_reported_in_one_sentence(grid: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_grid(grid)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_below_a_value_that_is_not_a_mapping_is_reported() -> None:
    values: dict[str, Any] = {"run": {"seed": 17}}
    with pytest.raises(UserError, match=r"GRID: run\.seed has no keys below it, so run\.seed\.x cannot be set"):
        with_settings(values, {"run.seed.x": 1})


def test_a_key_that_is_a_number_in_params_yaml_is_set_and_not_added_as_text() -> None:
    text = "rise:\n  env: {options: {prices: {1: 0.5}}}\n"
    values = with_settings({"rise": {"env": {"options": {"prices": {1: 0.5}}}}}, {"rise.env.options.prices.1": 0.25})
    assert values == {"rise": {"env": {"options": {"prices": {1: 0.25}}}}}
    assert rewritten(text, values) == text.replace("0.5", "0.25")
    assert with_settings({"a": {17: {"b": 1}}}, {"a.17.b": 2, "a.18.b": 3}) == {"a": {17: {"b": 2}, "18": {"b": 3}}}


def test_only_changed_lines_are_rewritten() -> None:
    text = "# A comment.\nrun: {seed: 17}   # the seed\nrise:\n  a: 1    # kept\n  b: 2\n"
    new = rewritten(text, {"run": {"seed": 17}, "rise": {"a": 1, "b": 3}})
    assert new == text.replace("b: 2", "b: 3")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\nfor gpu in 0 1 2 3; do echo "NVIDIA H100, 81559, GPU-$gpu"; done\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def devices(jobs: int, params: Any) -> list[str]:
    return [share["CUDA_VISIBLE_DEVICES"] for share in gpu_shares(jobs, params)]


@pytest.mark.usefixtures("four_gpus")
def test_concurrent_runs_divide_the_visible_gpus_and_more_runs_than_gpus_share_them_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = [{"rise": {"engines": {"student": {"engine": "transformers", "device": "cuda"}, "teacher": None}}}]
    assert devices(2, params) == ["0,1", "2,3"]
    assert devices(6, params) == ["0", "1", "2", "3", "0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,2")
    assert devices(3, params) == ["1", "3", "2"]
    assert devices(4, params) == ["1", "3", "2", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert devices(3, params) == ["3", "3", "3"]


@pytest.mark.usefixtures("four_gpus")
def test_more_runs_than_gpus_are_refused_if_an_engine_of_any_of_them_is_vllm() -> None:
    default: dict[str, Any] = {"rise": {"engines": {"student": {"engine": "transformers", "device": "cuda"}}}}
    vllm = {"rise": {"engines": {"student": {"engine": "vllm"}}}}
    assert devices(4, [default, vllm]) == ["0", "1", "2", "3"]
    for params in (vllm, [default, vllm]):
        with refused_with("JOBS=5, but the number of GPUs is 4, and runs with engine: vllm .* use JOBS=4"):
            gpu_shares(5, params)


def test_unknown_keys_and_invalid_values_are_all_reported_and_nothing_starts(tmp_path: Path) -> None:
    repo = copy_repo(tmp_path / "repo")
    grid = "rise.rows.iter2.train.lr=-1,2 spin.rows.iter1.trian.lr=1 run.seed=17"
    done = run(repo, sys.executable, "-m", "selfimprove.pipeline.sweep", grid, check=False)
    assert done.returncode == 2
    assert "params.yaml: rise.rows.iter2.train.lr: input should be greater than" in done.stderr
    assert "spin.rows.iter1.trian: unknown key; did you mean 'train'?" in done.stderr
    assert "no experiment was started." in done.stderr
    assert not (repo / ".scratch/sweep").exists()


@pytest.mark.slow
def test_a_second_concurrent_sweep_and_a_sweep_without_a_commit_are_refused(tmp_path: Path) -> None:
    repo = copy_repo(tmp_path / "repo")
    command = [sys.executable, "-m", "selfimprove.pipeline.sweep", "run.seed=17"]
    (repo / ".scratch/sweep").mkdir(parents=True)
    holder = ["flock", str(repo / ".scratch/sweep/lock"), *command]
    done = subprocess.run(holder, cwd=repo, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, "another sweep is running in this folder" in done.stderr) == (2, True)
    run(repo, "rm", "-rf", ".git")
    run(repo, "git", "init", "--quiet")
    done = run(repo, *command, check=False)
    assert (done.returncode, "`git commit` first" in done.stderr) == (2, True)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository, without stages, in which points are prepared."""
    folder = tmp_path / "repo"
    (folder / "few_shot").mkdir(parents=True)
    (folder / "few_shot/old.txt").write_text("an example\n" * 20)
    (folder / ".gitignore").write_text("/build\n/.scratch\n")
    run(folder, "git", "init", "--quiet")
    run(folder, "dvc", "init", "--quiet")
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "-m", "x")
    monkeypatch.chdir(folder)
    sweep.HOME.mkdir(parents=True)
    return folder


def test_a_renamed_file_has_only_its_new_name_in_a_point_and_names_may_contain_any_bytes(repo: Path) -> None:
    run(repo, "git", "mv", "few_shot/old.txt", "few_shot/new.txt")
    Path(os.fsdecode(b"caf\xe9.txt")).write_text("new\n")
    folder = sweep._prepare(GridPoint("one", {}, "run: {seed: 18}\n"))
    assert [path.name for path in (folder / "few_shot").iterdir()] == ["new.txt"]
    assert (folder / os.fsdecode(b"caf\xe9.txt")).exists()
    assert (folder / "params.yaml").read_text() == "run: {seed: 18}\n"
    assert sweep._state("rise") == sweep._state("rise")


def test_files_of_git_that_runs_rewrite_do_not_rename_a_point(repo: Path) -> None:
    before = sweep._state("rise")
    for name in ("dvc.lock", "results/headline/spin.json"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("of another run")
        assert sweep._state("rise") == before
    (repo / "stages.py").write_text("an edit")
    assert sweep._state("rise") != before


def test_a_changed_file_that_git_ignores_and_params_name_makes_another_point(repo: Path) -> None:
    values = {"rise": {"tasks": {"file": "build/train.jsonl"}}}
    (repo / "build").mkdir()
    digests = []
    for text in ("1", "1", "2"):
        (repo / "build/train.jsonl").write_text(text)
        sweep._content.cache_clear()
        digests.append(sweep._inputs(values))
    assert digests[0] == digests[1] != digests[2]


def test_unfinished_runs_of_another_grid_stay_until_scratch_folders_are_deleted(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input beside the repository is linked beside the points' folders."""
    (repo.parent / "my_model").mkdir()
    (repo.parent / "my_model/config.json").write_text("{}")
    point = GridPoint("one", {}, "base: {rise: {model: ../my_model}}\n")
    folder = sweep._prepare(point)
    (folder / ".scratch").mkdir()
    (folder / ".scratch/journal").write_text("hours of work")
    sweep._tell_others([point])
    assert capsys.readouterr().out == ""
    sweep._tell_others([GridPoint("two", {}, "")])
    assert (
        "unfinished runs of other grids or commits in .scratch/sweep: 1; `make clean-scratch`"
        in capsys.readouterr().out
    )
    assert (folder / ".scratch/journal").read_text() == "hours of work"
    assert (folder / "../my_model/config.json").read_text() == "{}"
    clean.main()
    assert [path.name for path in sweep.HOME.iterdir()] == ["lock"]
    assert (repo.parent / "my_model/config.json").exists()


def test_scratch_folders_are_not_deleted_under_a_sweep(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep._prepare(GridPoint("one", {}, "run: {seed: 18}\n"))
    with alone(sweep.HOME / "lock", ""), pytest.raises(SystemExit) as stopped:
        clean.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("a sweep is running in this folder; wait for it, or stop it")
    assert folder.exists()


def test_a_relative_link_that_git_does_not_ignore_leads_to_its_target_from_a_point_too(repo: Path) -> None:
    (repo.parent / "venv/bin").mkdir(parents=True)
    (repo / ".venv").symlink_to("../venv")
    folder = sweep._prepare(GridPoint("one", {}, "run: {seed: 18}\n"))
    assert (folder / ".venv").resolve() == (repo.parent / "venv").resolve()


def test_a_scratch_folder_on_another_disk_is_not_shared_with_the_points(repo: Path) -> None:
    """They would share its locks. Git ignores a link only if its name in .gitignore has no slash at the end."""
    (repo / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    (repo / ".scratch").rename(repo.parent / "disk")
    (repo / ".scratch").symlink_to(repo.parent / "disk")
    assert ".scratch" not in sweep._edited()
    assert not (sweep._prepare(GridPoint("one", {}, "run: {seed: 18}\n")) / ".scratch").exists()


def test_a_point_is_prepared_with_a_template_of_git_s_that_has_no_info_folder(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.parent / "template").mkdir()
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(repo.parent / "template"))
    (repo / ".venv").mkdir()
    folder = sweep._prepare(GridPoint("one", {}, "run: {seed: 18}\n"))
    assert "/.venv\n" in (folder / ".git/info/exclude").read_text()


def test_what_git_refuses_is_reported_in_one_sentence(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = repo.parent / "template/hooks/post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\necho 'git-lfs was not found' >&2\nexit 2\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(repo.parent / "template"))
    said = sweep._Runs("rise", [{}]).one(GridPoint("one", {}, "run: {seed: 18}\n"))
    assert said
    assert said.startswith("one: `git checkout` failed in ")
    assert "(git-lfs was not found)" in said


def test_the_points_share_a_cache_of_search_results_that_the_first_of_them_creates(repo: Path) -> None:
    params = "spin: {tools: {cache: paid/search.jsonl}}\n"
    folders = [sweep._prepare(GridPoint(name, {}, params)) for name in ("one", "two")]
    first, second = (CachedSearch(lambda query: f"answer to {query}", one / "paid/search.jsonl") for one in folders)
    assert [first("a"), second("b")] == ["answer to a", "answer to b"]
    clean.main()
    kept = CachedSearch(lambda query: None, repo / "paid/search.jsonl")
    assert [kept("a"), kept("b")] == ["answer to a", "answer to b"]


def test_the_example_in_the_makefile_is_a_valid_grid() -> None:
    example = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "make sweep GRID=" in line)
    assert len(parse_grid(example.split('"')[1])) == 4
