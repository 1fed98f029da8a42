"""The whole pipeline under the smoke profile, through DVC, as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.repo_copy import ROOT, copy_repo, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as `make repro` does
ROWS = ["base", "more_sft", "single_turn", "unweighted", "iter1", "iter2"]


def ran(output: str) -> set[str]:
    """Stages that DVC executed."""
    return set(re.findall(r"Running stage '([^']+)'", output))


def edit(folder: Path, change: str, value: object) -> None:
    """Set one param, as a user would in an editor."""
    yaml = YAML()
    path = folder / "params.yaml"
    params = yaml.load(path)
    node = params
    *keys, last = change.split(".")
    for key in keys:
        node = node[key]
    node[last] = value
    yaml.dump(params, path)


def hashes(folder: Path) -> dict[str, str]:
    """Output path -> hash, of every stage in dvc.lock."""
    lock = YAML(typ="safe", pure=True).load(folder / "dvc.lock")
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_repo(tmp_path_factory.mktemp("repo"))
    run(folder, *WARM, "dvc", "repro")
    return folder


def test_the_results_have_every_row_with_mean_error_and_n(repo: Path) -> None:
    summary = json.loads((repo / "results/summary.json").read_text())["rise"]
    assert summary["order"] == ROWS
    for row in ROWS:
        for column in ("m1@t1", "m5@t1", "m1@t5", "p1@t5"):
            figure = summary["rows"][row]["metrics"][column]
            assert set(figure) == {"mean", "se", "n"}
            assert figure["n"] == 8
    table = run(repo, "python", "-m", "selfimprove.report.table").stdout
    assert all(row in table for row in ROWS)
    assert (repo / "report/rise-accuracy-by-turn.png").stat().st_size > 1000


def test_controls_train_on_as_many_tokens_as_the_iterations_together(repo: Path) -> None:
    def figures(row: str) -> dict[str, int]:
        value: dict[str, int] = json.loads((repo / f"results/rise/{row}/train.json").read_text())
        return value

    together = figures("iter1")["real_tokens"] + figures("iter2")["real_tokens"]
    assert figures("iter2")["lineage_tokens"] == together
    for control in ("more_sft", "single_turn", "unweighted"):
        tokens, steps = figures(control)["real_tokens"], figures(control)["steps"]
        assert together <= tokens <= together + 2 * tokens / steps  # the step that reaches the budget is finished


def test_nothing_reruns_when_nothing_changed(repo: Path) -> None:
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()


def test_a_second_run_from_scratch_without_the_warm_helper_gives_identical_hashes(repo: Path, tmp_path: Path) -> None:
    other = copy_repo(tmp_path / "again")
    run(other, "dvc", "repro")
    assert hashes(other) == hashes(repo)


def test_a_changed_param_reruns_what_depends_on_it_and_comes_back_from_the_run_cache(repo: Path) -> None:
    before = hashes(repo)
    edit(repo, "rise.iterations.iter2.finetune.lr", 0.003)
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == {"rise-finetune@iter2", "rise-evaluate@iter2", "report"}
    assert hashes(repo)["models/rise/iter2"] != before["models/rise/iter2"]
    assert "lr" in run(repo, "dvc", "params", "diff").stdout
    edit(repo, "rise.iterations.iter2.finetune.lr", 0.002)
    back = run(repo, *WARM, "dvc", "repro").stdout
    assert ran(back) == set()
    assert hashes(repo) == before


def test_an_added_iteration_runs_its_four_stages(repo: Path) -> None:
    params = (repo / "params.yaml").read_text()
    iteration = YAML(typ="safe", pure=True).load(repo / "params.yaml")["rise"]["iterations"]["iter2"]
    edit(repo, "rise.iterations.iter3", {**iteration, "init": "iter2", "init_from": "iter2"})
    mine = {f"rise-{step}@iter3" for step in ("generate", "convert", "finetune", "evaluate")}
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == mine | {"report"}
    assert "iter3" in json.loads((repo / "results/summary.json").read_text())["rise"]["order"]
    (repo / "params.yaml").write_text(params)
    run(repo, *WARM, "dvc", "repro")


def test_dvc_experiments_plots_metrics_and_graph_are_readable(repo: Path) -> None:
    run(repo, "git", "add", "--all")
    run(repo, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "results")
    run(repo, *WARM, "dvc", "exp", "run", "-n", "cooler", "-S", "rise.evaluate.temperature=0.5")
    table = run(repo, "dvc", "exp", "show", "--csv").stdout
    assert "cooler" in table
    assert "rise.evaluate.temperature" in table
    assert "temperature" in run(repo, "dvc", "params", "diff").stdout
    run(repo, "dvc", "metrics", "diff")
    shown = run(repo, "dvc", "plots", "show", "--json").stdout
    for plot in ("turns.csv", "loss.csv", "rewards.csv"):
        assert plot in shown
    assert "rise-finetune@iter2" in run(repo, "dvc", "dag").stdout


PROFILES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


def test_the_profiles_of_the_readme_are_all_there() -> None:
    assert {"default", "smoke", "gsm8k-cpu", "math-cpu", "rise-llama2-7b", "rise-mistral-7b-selfdistill"} <= set(
        PROFILES
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_validates_and_gives_a_graph_that_dvc_accepts(profile: str, tmp_path: Path) -> None:
    folder = copy_repo(tmp_path, profile)
    run(folder, "python", "-m", "selfimprove.pipeline.check")
    # --force: without it DVC wants to hash files that no stage has made yet.
    planned = ran(run(folder, "dvc", "repro", "--dry", "--force").stdout)
    assert {"rise-data", "base", "rise-sft", "report"} <= planned
    assert "#" in (folder / "params.yaml").read_text()


def test_params_start_as_the_default_profile() -> None:
    assert (ROOT / "params.yaml").read_text() == (ROOT / "profiles/default.yaml").read_text()
