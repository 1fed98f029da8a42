"""The whole pipeline under the smoke profile, run through DVC as by a user."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.pipeline.dvc_files import DVC
from selfimprove.pipeline.sections import METHOD_SCHEMAS
from tests.support.repo_copy import ROOT, copy_repo, environment, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

WARM = ("python", "-m", "selfimprove.pipeline.warm")
"""Prefix of ``dvc``, as in `make repro`; omitted if no heavy stage should run, as its helper would import torch."""
METHODS = ("rise", "agent_r")
CONTROLS = {"rise": ["more_sft", "single_turn", "unweighted"], "agent_r": ["more_sft", "good_only", "direct"]}
COLUMNS = {"rise": ("m1@t1", "m5@t1", "m1@t5", "p1@t5"), "agent_r": ("score", "success", "steps", "invalid")}
PLOTS = {"rise": "rise-accuracy-by-turn", "agent_r": "agent_r-score-by-iteration"}


ANYWHERE = {"tracking", "run.max_blocked", "run.cluster"}
"""Params that change no output."""
MISSING = object()


def ran(output: str) -> set[str]:
    """Stages that DVC executed, except ``inputs``, which checks code, packages and files every time."""
    return set(re.findall(r"Running stage '([^']+)'", output)) - {"inputs"}


def edit(folder: Path, change: str, value: object) -> None:
    """Set one param, as a user would in an editor."""
    yaml = YAML()
    yaml.representer.ignore_aliases = lambda *_: True
    path = folder / "params.yaml"
    params = yaml.load(path)
    node = params
    *keys, last = change.split(".")
    for key in keys:
        node = node[key]
    node[last] = value
    yaml.dump(params, path)


def hashes(folder: Path) -> dict[str, str]:
    """Output path -> hash, for the stages in dvc.lock that have run here: those of which every output exists."""
    lock = YAML(typ="safe", pure=True).load(folder / "dvc.lock")
    done = [
        stage["outs"]
        for stage in lock["stages"].values()
        if all((folder / out["path"]).exists() for out in stage["outs"])
    ]
    return {out["path"]: out["md5"] for outs in done for out in outs}


def both(*names: str) -> set[str]:
    """The stages with these names, for both methods."""
    return {f"{method}-{name}" for method in METHODS for name in names}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_repo(tmp_path_factory.mktemp("repo"))
    run(folder, *WARM, "dvc", "repro", PYTHONPATH=str(ROOT / "tests/support/reads"))  # stages record what they read
    return folder


def test_dvc_yaml_declares_every_file_and_param_that_a_stage_reads(repo: Path) -> None:
    params = YAML(typ="safe", pure=True).load(repo / "params.yaml")
    stages = YAML(typ="safe", pure=True).load(repo / "dvc.lock")["stages"]
    names = run(repo, "dvc", "stage", "list", "--name-only").stdout.split()
    assert {path.name for path in (repo / ".scratch/reads").iterdir()} == set(names)
    assert [fault for name in names if name != "inputs" for fault in undeclared(repo, name, stages[name], params)] == []


def test_no_stage_adds_floats_with_sum_which_rounds_differently_from_python_3_12_on(repo: Path) -> None:
    lines = [line for path in (repo / ".scratch/reads").iterdir() for line in path.read_text().splitlines()]
    assert {line for line in lines if line.startswith("sum ")} == set()


def undeclared(repo: Path, name: str, stage: dict[str, Any], params: dict[str, Any]) -> Iterator[str]:
    """Files and params that a stage read (recorded by ``tests/support/reads``) but does not declare in dvc.yaml."""
    named = set(stage.get("params", {}).get("params.yaml", {})) | ANYWHERE
    files = [entry["path"] for kind in ("deps", "outs") for entry in stage.get(kind, [])]
    for line in (repo / ".scratch/reads" / name).read_text().splitlines():
        kind, what = line.split(" ", 1)
        if kind == "file" and not any(what == file or what.startswith(f"{file}/") for file in files):
            yield f"{name} reads {what}"
        for key in [what, *shared_by(what, params)] if kind == "param" else ():
            if not any(key == one or key.startswith(f"{one}.") for one in named):
                yield f"{name} reads {key} ({what})"


def shared_by(key: str, params: dict[str, Any]) -> list[str]:
    """Shared settings that a training's value may come from; none if the training sets its own value."""
    node: Any = params
    for part in key.split("."):
        node = node.get(part, MISSING) if isinstance(node, dict) else MISSING
    method, _, place = key.partition(".")
    if node is not MISSING or method not in METHOD_SCHEMAS:
        return []
    takers = METHOD_SCHEMAS[method].takers(params[method]).items()
    return [
        f"{method}.{one}" for taker, keys in takers if fnmatch(place, f"{taker.removesuffix('?')}.*") for one in keys
    ]


@pytest.mark.parametrize("method", METHODS)
def test_every_row_of_the_results_has_mean_standard_error_and_n(repo: Path, method: str) -> None:
    summary = json.loads((repo / "results/summary.json").read_text())[method]
    assert summary["order"] == ["base", *CONTROLS[method], "iter1", "iter2"]
    for row in summary["order"]:
        for column in COLUMNS[method]:
            metric = summary["rows"][row]["metrics"][column]
            assert set(metric) == {"mean", "se", "n"}
            assert metric["n"] >= 8  # number of test problems, or of actions for a share of actions
    if method == "agent_r":  # the revision evaluation starts from the base's own failures, the same for every row
        given = len((repo / "data/agent_r/beginnings.jsonl").read_text().splitlines())
        assert {metrics["metrics"]["revision_score"]["n"] for metrics in summary["rows"].values()} == {given}
        assert given > 0
    table = run(repo, "python", "-m", "selfimprove.apps.report.table", method).stdout
    assert all(row in table for row in summary["order"])
    assert (repo / f"report/{PLOTS[method]}.png").stat().st_size > 1000


@pytest.mark.parametrize("method", METHODS)
def test_controls_train_on_as_many_tokens_as_an_iteration_and_those_it_goes_on_from(repo: Path, method: str) -> None:
    def metrics(row: str) -> dict[str, int]:
        value: dict[str, int] = json.loads((repo / f"results/{method}/{row}/train.json").read_text())
        return value

    together = metrics("iter2")["real_tokens"]
    if YAML(typ="safe").load(repo / "params.yaml")[method]["rows"]["iter2"]["init"] == "iter1":
        together += metrics("iter1")["real_tokens"]
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
def test_reflect_rl_and_spin_have_all_their_rows_and_the_table_ends_with_all_methods(repo: Path, method: str) -> None:
    rows, columns = OTHERS[method]
    summary = json.loads((repo / "results/summary.json").read_text())[method]
    assert summary["order"] == rows
    for row in rows:
        for column in columns:
            assert set(summary["rows"][row]["metrics"][column]) == {"mean", "se", "n"}
    table = run(repo, "python", "-m", "selfimprove.apps.report.table").stdout
    last = table[table.index("all methods") :]
    assert all(f" {row} " in last for row in rows)


def test_reflect_rl_records_its_reflector_s_hash_and_spin_starts_with_a_margin_of_zero(repo: Path) -> None:
    trained = json.loads((repo / "results/reflect_rl/reflect_rl/train.json").read_text())
    assert trained["reflector_hash"]
    first = json.loads((repo / "results/spin/iter0/train.json").read_text())["first"]
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("method", [*METHODS, *OTHERS])
def test_all_rows_of_a_method_are_evaluated_with_the_same_noise(repo: Path, method: str) -> None:
    """Paired differences then contain no noise of their own, and equal models have equal results."""
    seeds = {
        path.parent.name: {
            (one["id"], one.get("run")): one["seed"] for one in map(json.loads, path.read_text().splitlines())
        }
        for path in (repo / "results" / method).glob("*/episodes.jsonl")
    }
    first, *others = seeds.values()
    assert len(others) >= 3
    assert len(set(first.values())) > 1
    assert all(other == first for other in others)


def test_every_iteration_of_agent_r_has_judged_revisions_and_good_examples(repo: Path) -> None:
    for row in ("iter1", "iter2"):
        metrics = json.loads((repo / f"results/agent_r/{row}/convert.json").read_text())
        assert metrics["revision_examples"] > 0
        assert metrics["good_examples"] > 0
        assert metrics["judged"] > 0


def test_editing_docstrings_or_the_progress_display_reruns_nothing_and_a_summary_its_report(repo: Path) -> None:
    for file, edit in (("envs/taxi/env.py", "# A comment.\n"), ("engines/progress.py", "EDITED = 1\n")):
        path = repo / "selfimprove" / file
        path.write_text(path.read_text().replace('"""', '"""Edited: ', 1) + edit)
    assert ran(run(repo, "dvc", "repro").stdout) == set()
    with (repo / "selfimprove/methods/reflect_rl/summary.py").open("a") as file:  # type: ignore[assignment]
        file.write("EDITED = 1\n")  # type: ignore[attr-defined]
    assert ran(run(repo, *DVC, "repro").stdout) == {"reflect_rl-report"}
    run(repo, "git", "checkout", "--quiet", "selfimprove")
    assert ran(run(repo, *DVC, "repro").stdout) == set()  # from the run cache


def test_another_version_of_a_package_reruns_stages_but_an_optional_package_does_not(repo: Path) -> None:
    before = hashes(repo)
    for package, rerun in (("bitsandbytes-0.50.2", set()), ("numpy-9.9.9", {"rise-data"})):
        (repo / f".site-{package}/{package}.dist-info").mkdir(parents=True)
        done = run(repo, *DVC, "repro", "rise-data", PYTHONPATH=str(repo / f".site-{package}"))
        assert ran(done.stdout) == rerun
    assert ran(run(repo, *DVC, "repro", "rise-data").stdout) == set()  # from the run cache
    assert hashes(repo) == before


def test_a_second_run_from_scratch_gives_identical_hashes(repo: Path, tmp_path: Path) -> None:
    """Random hash seeds, up to each method's last row; part of SPIN without the warm helper, RISE in two jobs."""
    other = copy_repo(tmp_path / "again")
    cold = ran(run(other, "dvc", "repro", "spin-evaluate@iter0", PYTHONHASHSEED="random").stdout)
    assert {"spin-generate@iter0", "spin-convert@iter0", "spin-finetune@iter0", "spin-evaluate@iter0"} <= cold
    at_once = (sys.executable, "-m", "selfimprove.pipeline.parallel", "2", "rise-evaluate@iter2", "spin-report")
    warm = ran(run(other, *WARM, *at_once, PYTHONHASHSEED="random").stdout)
    last = ("reflect_rl-evaluate@reflect_rl", "agent_r-evaluate@iter2")
    warm |= ran(run(other, *WARM, "dvc", "repro", *last, PYTHONHASHSEED="random").stdout)
    assert {*last, "reflect_rl-reinforce@reflect_rl", "rise-evaluate@iter2", "spin-report"} <= warm
    again = hashes(other)
    assert again == {path: value for path, value in hashes(repo).items() if path in again}


@dataclass(frozen=True)
class Changed:
    """A run with changed params and one after restoring them: the stages executed, and the hashes after each run."""

    old: dict[str, str]
    params: list[str]
    done: subprocess.CompletedProcess[str]
    new: dict[str, str]
    again: set[str]
    last: dict[str, str]


@pytest.fixture(scope="module")
def changed(repo: Path) -> Changed:
    """Changes the learning rate of a control, of a reinforcement run, and of an iteration of each other method."""
    old, text = hashes(repo), (repo / "params.yaml").read_text()
    params = [
        *(f"{method}.rows.iter2.train.lr" for method in METHODS),
        "rise.rows.more_sft.train.lr",
        "reflect_rl.iterations.no_reflection.rl.lr",
        "spin.rows.iter1.train.lr",
    ]
    for param in params:
        edit(repo, param, 0.003)
    done = run(repo, *WARM, "dvc", "repro")
    new = hashes(repo)
    (repo / "params.yaml").write_text(text)
    again = ran(run(repo, *DVC, "repro").stdout)
    return Changed(old, params, done, new, again, hashes(repo))


def test_a_changed_param_reruns_exactly_the_stages_that_depend_on_it(changed: Changed) -> None:
    mine = both("finetune@iter2", "evaluate@iter2", "report") | {"report"}
    control = {"rise-finetune@more_sft", "rise-evaluate@more_sft"}
    others = {"reflect_rl-reinforce@no_reflection", "reflect_rl-evaluate@no_reflection", "spin-finetune@iter1"}
    # In runs this small their inputs may stay byte-identical, so that they are not executed.
    perhaps = {"reflect_rl-report", "spin-evaluate@iter1", "spin-report"}
    assert ran(changed.done.stdout) - perhaps == mine | control | others
    for method in METHODS:
        assert changed.new[f"models/{method}/iter2"] != changed.old[f"models/{method}/iter2"]


def test_only_the_changed_control_is_evaluated_again(changed: Changed) -> None:
    evaluated = set(re.findall(r"rise-evaluate@(\w+): ", changed.done.stderr))
    assert evaluated & set(CONTROLS["rise"]) == {"more_sft"}


def test_after_restoring_a_param_everything_comes_from_the_run_cache(changed: Changed) -> None:
    assert changed.again == set()
    assert changed.last == changed.old


def test_an_added_iteration_runs_its_four_stages_and_a_method_needs_no_controls(repo: Path) -> None:
    for method in METHODS:
        section = YAML(typ="safe", pure=True).load(repo / "params.yaml")[method]
        edit(repo, f"{method}.iterations.iter3", {**section["iterations"]["iter2"], "init": "iter2"})
        rows = {**section["rows"], "iter3": {**section["rows"]["iter2"], "init": "iter2", "source": "iter3"}}
        kept = {name: row for name, row in rows.items() if method != "rise" or row["match"] == "none"}
        edit(repo, f"{method}.rows", kept)
    mine = both("generate@iter3", "convert@iter3", "finetune@iter3", "evaluate@iter3", "report") | {"report"}
    assert ran(run(repo, *WARM, "dvc", "repro").stdout) == mine
    summary = json.loads((repo / "results/summary.json").read_text())
    assert summary["rise"]["order"] == ["base", "iter1", "iter2", "iter3"]
    assert summary["agent_r"]["order"] == ["base", *CONTROLS["agent_r"], "iter1", "iter2", "iter3"]


def test_dvc_shows_experiments_params_plots_and_the_graph(repo: Path) -> None:
    run(repo, "git", "add", "--all")
    run(repo, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "results")
    changed = "agent_r.rows.direct.train.lr"
    run(repo, *WARM, "dvc", "exp", "run", "-n", "cooler", "-S", f"{changed}=0.0005", "agent_r-report")
    table = run(repo, "dvc", "exp", "show", "--csv").stdout
    assert "cooler" in table
    assert changed in table
    assert changed in run(repo, "dvc", "params", "diff").stdout
    branch = run(repo, "git", "symbolic-ref", "HEAD").stdout
    own = (sys.executable, "-m", "selfimprove.pipeline.repro", "--jobs", "2", "--set", f"{changed}=0.0004")
    done = run(repo, *own, "agent_r-report")  # as `make exp`
    assert ran(done.stdout) == {"agent_r-finetune@direct", "agent_r-evaluate@direct", "agent_r-report"}
    [name] = re.findall(r"Ran experiment\(s\): (\S+)", done.stdout)
    assert {"cooler", name} <= set(re.findall(r"[\w-]+", run(repo, "dvc", "exp", "show", "--csv").stdout))
    refs = run(repo, "git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout.split()
    [ref] = [one for one in refs if one.endswith(f"/{name}")]
    files = run(repo, "git", "show", "--format=", "--name-only", ref).stdout.split()
    assert {"params.yaml", "dvc.lock"} <= set(files)
    outputs = {file for file in files if file.startswith(("data/", "models/", "results/"))}
    assert outputs <= {"results/headline/agent_r.json"}  # DVC keeps the others
    assert run(repo, "git", "symbolic-ref", "HEAD").stdout == branch
    run(repo, "dvc", "metrics", "diff")
    shown = run(repo, "dvc", "plots", "show", "--json").stdout
    for plot in ("turns.csv", "loss.csv", "rewards.csv", "agent_r-iterations.csv"):
        assert plot in shown
    graph = run(repo, "dvc", "dag").stdout
    for stage in both("finetune@iter2", "report"):
        assert stage in graph


def test_a_killed_sweep_resumes_and_its_experiments_are_compared(repo: Path) -> None:
    grid = "agent_r.rows.direct.train.lr=0.0006,0.0007"
    command = [sys.executable, "-m", "selfimprove.pipeline.sweep", grid, "--method", "agent_r", "--jobs", "2"]
    before = run(repo, "git", "status", "--porcelain").stdout
    with subprocess.Popen(command, cwd=repo, env=environment(), start_new_session=True) as sweep:
        while True:  # until both experiments are in a stage that has not run before
            logs = [path.read_text() for path in (repo / ".scratch/sweep").glob("*.log")]
            if len(logs) == 2 and all("Running stage 'agent_r-finetune@direct'" in log for log in logs):
                break
            assert sweep.poll() is None, logs
            time.sleep(0.1)
        os.killpg(sweep.pid, signal.SIGKILL)
    done = run(repo, *command)
    assert "2 experiments: 0 done, 2 to run, 2 at once" in done.stdout
    for path in (repo / ".scratch/sweep").glob("*.log"):
        assert ran(path.read_text()) == {"agent_r-finetune@direct", "agent_r-evaluate@direct", "agent_r-report"}
    table = run(repo, "python", "-m", "selfimprove.apps.report.compare").stdout
    for lr in ("0.0006", "0.0007"):
        assert f"agent_r.rows.direct.train.lr: 0.001 → {lr}" in table
    assert run(repo, "git", "status", "--porcelain").stdout == before  # a sweep leaves the working tree unchanged
    assert "2 done, 0 to run" in run(repo, *command).stdout


def test_params_yaml_equals_the_default_profile() -> None:
    assert (ROOT / "params.yaml").read_text() == (ROOT / "profiles/default.yaml").read_text()
