"""The whole pipeline under the smoke profile, through DVC, as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.repo_copy import ROOT, copy_repo, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as `make repro` does
VALID = (
    "from selfimprove.pipeline.check import *\n"
    "faults = list(params_faults(read_yaml(PARAMS_FILE)))\n"
    "sys.exit(chr(10).join(faults) or 0)\n"
)
METHODS = ("rise", "agent_r")
CONTROLS = {"rise": ["more_sft", "single_turn", "unweighted"], "agent_r": ["more_sft", "good_only", "direct"]}
COLUMNS = {"rise": ("m1@t1", "m5@t1", "m1@t5", "p1@t5"), "agent_r": ("score", "success", "steps", "invalid")}
PLOTS = {"rise": "rise-accuracy-by-turn", "agent_r": "agent_r-score-by-iteration"}


def ran(output: str) -> set[str]:
    """Stages that DVC executed, but for the one that looks each time at code, packages and files."""
    return set(re.findall(r"Running stage '([^']+)'", output)) - {"inputs"}


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


def both(*names: str) -> set[str]:
    """Stages of these names, of both methods."""
    return {f"{method}-{name}" for method in METHODS for name in names}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_repo(tmp_path_factory.mktemp("repo"))
    run(folder, *WARM, "dvc", "repro")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_the_results_have_every_row_with_mean_error_and_n(repo: Path, method: str) -> None:
    summary = json.loads((repo / "results/summary.json").read_text())[method]
    assert summary["order"] == ["base", *CONTROLS[method], "iter1", "iter2"]
    for row in summary["order"]:
        for column in COLUMNS[method]:
            metric = summary["rows"][row]["metrics"][column]
            assert set(metric) == {"mean", "se", "n"}
            assert metric["n"] >= 8  # test problems; actions, where it is a share of them
    if method == "agent_r":  # the revision evaluation goes on from the base's own failures, the same for every row
        given = len((repo / "data/agent_r/beginnings.jsonl").read_text().splitlines())
        assert {metrics["metrics"]["revision_score"]["n"] for metrics in summary["rows"].values()} == {given}
        assert given > 0
    table = run(repo, "python", "-m", "selfimprove.apps.report.table", method).stdout
    assert all(row in table for row in summary["order"])
    assert (repo / f"report/{PLOTS[method]}.png").stat().st_size > 1000


@pytest.mark.parametrize("method", METHODS)
def test_controls_train_on_as_many_tokens_as_the_iterations_together(repo: Path, method: str) -> None:
    def metrics(row: str) -> dict[str, int]:
        value: dict[str, int] = json.loads((repo / f"results/{method}/{row}/train.json").read_text())
        return value

    together = metrics("iter1")["real_tokens"] + metrics("iter2")["real_tokens"]
    assert metrics("iter2")["lineage_tokens"] == together
    for control in CONTROLS[method]:
        tokens, steps = metrics(control)["real_tokens"], metrics(control)["steps"]
        assert together <= tokens <= together + 2 * tokens / steps  # the step that reaches the budget is finished


OTHERS = {
    "reflect_rl": (
        ["chance", "policy", "more_sft", "rl_only", "no_reflection", "reflect_rl"],
        ("success", "cost", "steps"),
    ),
    "spin": (["base", "more_sft", "iter0", "iter1"], ("em", "f1", "finished", "invalid")),
}


@pytest.mark.parametrize("method", OTHERS)
def test_reflect_rl_and_spin_have_their_rows_too_and_one_table_ends_with_all_methods(repo: Path, method: str) -> None:
    rows, columns = OTHERS[method]
    summary = json.loads((repo / "results/summary.json").read_text())[method]
    assert summary["order"] == rows
    for row in rows:
        for column in columns:
            assert set(summary["rows"][row]["metrics"][column]) == {"mean", "se", "n"}
    table = run(repo, "python", "-m", "selfimprove.apps.report.table").stdout
    last = table[table.index("all methods") :]
    assert all(f" {row} " in last for row in rows)


def test_reflect_rl_40_and_spin_40_what_must_not_change_is_asserted_in_the_run(repo: Path) -> None:
    trained = json.loads((repo / "results/reflect_rl/reflect_rl/train.json").read_text())
    assert trained["reflector_hash"]
    first = json.loads((repo / "results/spin/iter0/train.json").read_text())["first"]
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-5)


def test_a_changed_run_of_reinforcement_and_a_changed_iteration_of_self_play_rerun_what_depends_on_them(
    repo: Path,
) -> None:
    before, old = hashes(repo), (repo / "params.yaml").read_text()
    edit(repo, "reflect_rl.iterations.no_reflection.rl.lr", 0.002)
    edit(repo, "spin.iterations.iter1.finetune.lr", 0.002)
    done = ran(run(repo, *WARM, "dvc", "repro").stdout)
    assert {"reflect_rl-finetune@no_reflection", "reflect_rl-evaluate@no_reflection", "spin-finetune@iter1"} <= done
    assert not {"reflect_rl-finetune@reflect_rl", "spin-generate@iter1", "spin-finetune@iter0", "rise-report"} & done
    (repo / "params.yaml").write_text(old)
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()
    assert hashes(repo) == before


def test_agent_r_32_iterations_learn_revisions_that_the_judge_placed(repo: Path) -> None:
    for row in ("iter1", "iter2"):
        metrics = json.loads((repo / f"results/agent_r/{row}/convert.json").read_text())
        assert metrics["revision_examples"] > 0
        assert metrics["good_examples"] > 0
        assert metrics["judged"] > 0


def test_nothing_reruns_when_nothing_changed(repo: Path) -> None:
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()


def test_a_docstring_in_an_environment_and_a_module_that_shows_progress_rerun_nothing(repo: Path) -> None:
    for file, edit in (("envs/taxi/env.py", "# A comment.\n"), ("engines/progress.py", "EDITED = 1\n")):
        path = repo / "selfimprove" / file
        path.write_text(path.read_text().replace('"""', '"""Edited: ', 1) + edit)
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()
    with (repo / "selfimprove/methods/reflect_rl/summary.py").open("a") as file:
        file.write("EDITED = 1\n")
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == {"reflect_rl-report"}
    run(repo, "git", "checkout", "--quiet", "selfimprove")
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()  # from the run cache


def test_another_version_of_a_package_reruns_stages_and_an_optional_package_does_not(repo: Path) -> None:
    before = hashes(repo)
    for package, rerun in (("bitsandbytes-0.50.2", set()), ("numpy-9.9.9", {"rise-data"})):
        (repo / f".site-{package}/{package}.dist-info").mkdir(parents=True)
        done = run(repo, "dvc", "repro", "rise-data", PYTHONPATH=str(repo / f".site-{package}"))
        assert ran(done.stdout) == rerun
    assert ran(run(repo, "dvc", "repro", "rise-data").stdout) == set()  # from the run cache
    assert hashes(repo) == before


def test_a_second_run_from_scratch_gives_identical_hashes(repo: Path, tmp_path: Path) -> None:
    """With other hash seeds, in another order of stages, and one iteration without the warm helper."""
    other = copy_repo(tmp_path / "again")
    cold = ran(run(other, "dvc", "repro", "rise-evaluate@iter1", PYTHONHASHSEED="random").stdout)
    assert {"rise-generate@iter1", "rise-convert@iter1", "rise-finetune@iter1", "rise-evaluate@iter1"} <= cold
    run(other, *WARM, "dvc", "repro", "agent_r-report", "report", PYTHONHASHSEED="random")
    assert hashes(other) == hashes(repo)


def test_a_changed_param_reruns_what_depends_on_it_and_comes_back_from_the_run_cache(repo: Path) -> None:
    before = hashes(repo)
    old = YAML(typ="safe", pure=True).load(repo / "params.yaml")
    for method in METHODS:
        edit(repo, f"{method}.iterations.iter2.finetune.lr", 0.003)
    mine = both("finetune@iter2", "evaluate@iter2", "report") | {"report"}
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == mine
    for method in METHODS:
        assert hashes(repo)[f"models/{method}/iter2"] != before[f"models/{method}/iter2"]
        edit(repo, f"{method}.iterations.iter2.finetune.lr", old[method]["iterations"]["iter2"]["finetune"]["lr"])
    back = run(repo, *WARM, "dvc", "repro").stdout
    assert ran(back) == set()
    assert hashes(repo) == before


def test_a_changed_control_is_evaluated_again_and_the_others_are_not(repo: Path) -> None:
    before, old = hashes(repo), YAML(typ="safe", pure=True).load(repo / "params.yaml")
    lr = "rise.controls.more_sft.finetune.lr"
    edit(repo, lr, 0.003)
    done = run(repo, *WARM, "dvc", "repro")
    # The joint report only runs if a metric of the summary changed, which so small a control may not bring about.
    assert ran(done.stdout) - {"report"} == {"rise-control-finetune@more_sft", "rise-control-evaluate", "rise-report"}
    assert set(re.findall(r"rise-evaluate@(\w+): ", done.stderr)) == {"more_sft"}
    edit(repo, lr, old["rise"]["controls"]["more_sft"]["finetune"]["lr"])
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()
    assert hashes(repo) == before


def test_a_method_needs_no_controls(repo: Path) -> None:
    params = (repo / "params.yaml").read_text()
    edit(repo, "rise.controls", {})
    shutil.move(repo / "models/rise/controls", repo / "kept")
    (repo / "models/rise/controls").mkdir()
    shutil.copy(repo / "kept/README.md", repo / "models/rise/controls/README.md")
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == {"rise-control-evaluate", "rise-report", "report"}
    assert json.loads((repo / "results/summary.json").read_text())["rise"]["order"] == ["base", "iter1", "iter2"]
    (repo / "params.yaml").write_text(params)
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == set()  # all from the run cache


def test_an_added_iteration_runs_its_four_stages(repo: Path) -> None:
    for method in METHODS:
        iteration = YAML(typ="safe", pure=True).load(repo / "params.yaml")[method]["iterations"]["iter2"]
        edit(repo, f"{method}.iterations.iter3", {**iteration, "init": "iter2", "init_from": "iter2"})
    mine = both("generate@iter3", "convert@iter3", "finetune@iter3", "evaluate@iter3", "report") | {"report"}
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == mine
    summary = json.loads((repo / "results/summary.json").read_text())
    assert all("iter3" in summary[method]["order"] for method in METHODS)


def test_dvc_experiments_plots_metrics_and_graph_are_readable(repo: Path) -> None:
    run(repo, "git", "add", "--all")
    run(repo, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "results")
    changed = "agent_r.controls.direct.finetune.lr"
    run(repo, *WARM, "dvc", "exp", "run", "-n", "cooler", "-S", f"{changed}=0.0005", "agent_r-report")
    table = run(repo, "dvc", "exp", "show", "--csv").stdout
    assert "cooler" in table
    assert changed in table
    assert changed in run(repo, "dvc", "params", "diff").stdout
    run(repo, "dvc", "metrics", "diff")
    shown = run(repo, "dvc", "plots", "show", "--json").stdout
    for plot in ("turns.csv", "loss.csv", "rewards.csv", "agent_r-iterations.csv"):
        assert plot in shown
    graph = run(repo, "dvc", "dag").stdout
    for stage in both("finetune@iter2", "report"):
        assert stage in graph


PROFILES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


def test_the_profiles_of_the_readme_are_all_there() -> None:
    rise = {"gsm8k-cpu", "math-cpu", "rise-llama2-7b", "rise-mistral-7b-selfdistill"}
    assert {"default", "smoke", "agent-r-llama3.1-8b"} | rise <= set(PROFILES)


@pytest.fixture(scope="module")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which nothing has run."""
    return copy_repo(tmp_path_factory.mktemp("unrun"))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_validates_and_gives_a_graph_that_dvc_accepts(unrun: Path, profile: str) -> None:
    run(unrun, "python", "-m", "selfimprove.pipeline.profiles", profile)
    run(unrun, "python", "-c", VALID)  # `make check` also looks for GPUs, packages and keys
    # --force: without it DVC wants to hash files that no stage has made yet.
    planned = ran(run(unrun, "dvc", "repro", "--dry", "--force").stdout)
    first = {f"base@{method}" for method in METHODS}
    assert first | both("data", "sft", "base-evaluate", "control-evaluate", "report") | {"report"} <= planned
    params = YAML(typ="safe", pure=True).load(unrun / "params.yaml")
    for method in METHODS:
        steps = [(step, "iterations") for step in ("generate", "convert", "finetune", "evaluate")]
        steps.append(("control-finetune", "controls"))
        assert {f"{method}-{step}@{name}" for step, kind in steps for name in params[method][kind]} <= planned
    assert "#" in (unrun / "params.yaml").read_text()


def test_params_start_as_the_default_profile() -> None:
    assert (ROOT / "params.yaml").read_text() == (ROOT / "profiles/default.yaml").read_text()
