"""Parallel stages: when and in which order they start, the effect of failures and signals, and the default number."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError
from selfimprove.pipeline import jobs, kernels, repro
from selfimprove.pipeline.parallel import ways
from selfimprove.pipeline.profiles import composed
from selfimprove.pipeline.warm import PARALLEL
from tests.support.processes import wait_until
from tests.support.repo_copy import ROOT, environment, run

pytestmark = pytest.mark.slow

WORK = '''
"""Write the output from the inputs; meanwhile wait for what others write, or fail, or wait for the end."""
import os, sys, time
from pathlib import Path
from selfimprove.training.stopping import sigterm_interrupts
name, meet, *needs = sys.argv[1:]
began = Path(f"began-{name}")
began.with_suffix(".part").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
began.with_suffix(".part").rename(began)
if Path(f"{name}.fails").exists():
    print(f"{name}: this and that is wrong; correct it.", file=sys.stderr)
    sys.exit(2)
with sigterm_interrupts():
    try:
        while meet != "-" and not Path(meet).exists():
            time.sleep(0.05)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        sys.exit(130)
Path(f"out-{name}").write_text(name + "".join(Path(f"out-{one}").read_text() for one in needs))
'''
# left and right each wait for the other to start, so they finish only if they run at the same time.
GRAPH = {
    "inputs": ("-", []),
    "left": ("began-right", []),
    "right": ("began-left", []),
    "both": ("-", ["left", "right"]),
    "alone": ("-", ["left"]),
    "goal": ("-", ["both", "alone"]),
    "elsewhere": ("-", []),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small pipeline under DVC."""
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, "dvc", "init", "--quiet")
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/__init__.py").touch()
    (tmp_path / "stages/work.py").write_text(WORK)
    stages: dict[str, Any] = {
        name: {
            "cmd": f"python -m stages.work {' '.join([name, meet, *needs])}",
            "deps": [f"out-{one}" for one in needs],
            "outs": [f"out-{name}"],
        }
        for name, (meet, needs) in GRAPH.items()
    }
    stages["inputs"]["always_changed"] = True
    (tmp_path / "params.yaml").write_text("run: {seed: 1}\n")
    YAML().dump({"stages": stages}, tmp_path / "dvc.yaml")
    return tmp_path


def started(folder: Path, *goals: str, **more: str) -> subprocess.Popen[str]:
    parallel = [sys.executable, "-m", "selfimprove.pipeline.parallel", "2", *goals]
    no_helper = {"ACCELERATOR": "cuda"}  # which would import torch
    return subprocess.Popen(
        [sys.executable, "-m", "selfimprove.pipeline.warm", *parallel], cwd=folder, text=True,
        env={**environment(), "PYTHONPATH": str(ROOT), **no_helper, **more},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def ran(folder: Path, *goals: str) -> tuple[int, str]:
    process = started(folder, *goals)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def recorded(folder: Path) -> set[str]:
    return set(YAML(typ="safe").load(folder / "dvc.lock")["stages"])


def test_stages_run_concurrently_and_each_only_after_the_stages_whose_outputs_it_reads(folder: Path) -> None:
    code, said = ran(folder, "goal")
    assert code == 0, said
    assert (folder / "out-goal").read_text() == "goalbothleftrightaloneleft"
    assert recorded(folder) == set(GRAPH) - {"elsewhere"}
    assert "Running stage 'goal' (stage 5 of 5, 1 running)" in said
    assert set(json.loads((folder / ".scratch/stages.json").read_text())) == set(GRAPH) - {"elsewhere"}
    assert not [line for line in said.splitlines() if "dvc" in line]  # DVC's lines about every stage are hidden
    (folder / "out-alone").write_text("other")
    code, said = ran(folder, "goal")  # the stage that always runs, then those that depend on the change
    assert re.findall(r"'(\w+)' \(stage \d of \d, 1 running, about \d+ s left\)", said) == [
        "inputs",
        "alone",
        "goal",
    ], said
    assert code == 0


def test_after_a_failure_no_stage_starts_and_the_next_run_resumes_there(folder: Path) -> None:
    (folder / "left.fails").touch()
    code, said = ran(folder, "both")
    assert code not in (0, 130), said
    assert "left: this and that is wrong; correct it." in said
    assert re.search(r"stage left failed(; right will still be finished)?\. Fix the error above", said), said
    assert recorded(folder) == {"inputs", "right"}
    assert not (folder / "began-both").exists()
    (folder / "left.fails").unlink()
    code, said = ran(folder, "both")
    assert (code, "'right'" in said, (folder / "out-both").exists()) == (0, False, True), said


@pytest.mark.parametrize(("way", "ends_with"), [("SIGTERM", 143), ("Ctrl-C", 130)])
def test_sigterm_and_ctrl_c_let_every_running_stage_stop_cleanly_and_end_the_run(
    folder: Path, way: str, ends_with: int
) -> None:
    definition = folder / "dvc.yaml"
    definition.write_text(definition.read_text().replace("began-left", "never").replace("began-right", "never"))
    process = started(folder, "both")
    wait_until(lambda: (folder / "began-left").exists() and (folder / "began-right").exists())
    if way == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == ends_with, said
    assert {"left: stopped", "right: stopped"} <= set(said.splitlines())
    assert recorded(folder) == {"inputs"}


def test_the_stages_of_a_killed_run_finish_and_the_next_run_waits_for_them(folder: Path) -> None:
    definition = folder / "dvc.yaml"
    definition.write_text(definition.read_text().replace("began-left", "go").replace("began-right", "go"))
    process = started(folder, "both")
    wait_until(lambda: (folder / "began-left").exists() and (folder / "began-right").exists())
    for one in [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]:
        one.kill()  # `selfimprove.pipeline.parallel` and its parent
    process.wait()
    for name in ("left", "right"):
        (folder / f"began-{name}").unlink()
    with started(folder, "both") as again:
        assert again.stdout is not None
        assert "another run is active in this folder" in again.stdout.readline()
        (folder / "go").touch()
        said = again.stdout.read()
    assert again.returncode == 0, said
    assert {path.name for path in folder.glob("began-*")} >= {"began-both"}
    assert not (folder / "began-left").exists(), said  # the orphaned DVC recorded it


def test_running_stages_finish_and_are_recorded_if_the_reader_of_the_output_has_exited(folder: Path) -> None:
    definition = YAML().load(folder / "dvc.yaml")
    definition["stages"]["left"]["cmd"] = "python -m stages.work left go"
    definition["stages"]["right"]["cmd"] = "python -m stages.work right -"
    YAML().dump(definition, folder / "dvc.yaml")
    process = started(folder, "left", "right", "elsewhere")
    assert process.stdout is not None
    with process.stdout as lines:  # as `make repro | head -3`
        assert [next(lines).split("'")[1] for _ in range(3)] == ["inputs", "elsewhere", "left"]
    wait_until(lambda: (folder / "began-right").exists())  # its line could not be printed
    (folder / "go").touch()
    process.wait(timeout=120)
    assert recorded(folder) == {"inputs", "left", "right", "elsewhere"}
    assert (folder / "out-left").read_text() == "left"


def test_redirected_stdout_gets_the_stage_lines_if_only_stderr_is_a_terminal(folder: Path) -> None:
    ours, terminal = os.openpty()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "selfimprove.pipeline.parallel", "2", "left", "right"],
            cwd=folder, env={**environment(), "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdout=said, stderr=terminal, start_new_session=True,
        )  # fmt: skip
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux raises it once nothing writes to the terminal any more
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait(timeout=120) == 0
    begun = re.findall(r"^Running stage '(\w+)' \(", (folder / "said").read_text(), re.MULTILINE)
    assert begun == ["inputs", "left", "right"]
    assert b"stages done" in shown
    assert b"Running stage" not in shown


@pytest.mark.parametrize(("gpus", "shares"), [("0 1 2 3", {"0,1", "2,3"}), ("0", {"0"})])
def test_if_the_params_use_a_gpu_concurrent_stages_divide_the_gpus_or_share_the_only_one(
    folder: Path, gpus: str, shares: set[str]
) -> None:
    (folder / "params.yaml").write_text("rise: {rows: {iter1: {train: {device: cuda}}}}\n")
    smi = folder / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f'#!/bin/sh\nfor gpu in {gpus}; do echo "NVIDIA H100, 81559, GPU-$gpu"; done\n')
    smi.chmod(0o755)
    with started(folder, "left", "right", PATH=f"{smi.parent}:{environment()['PATH']}") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert {(folder / f"began-{name}").read_text() for name in ("left", "right")} == shares


@given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12)), min_size=1))
def test_a_stage_s_critical_path_is_its_duration_plus_the_longest_path_of_its_dependents(
    edges: dict[int, set[int]],
) -> None:
    needs = {str(a): {str(b) for b in bs if b < a and b in edges} for a, bs in edges.items()}
    seconds = {name: 1.0 + int(name) for name in needs}
    found = ways(needs, seconds)

    def way(name: str) -> float:
        return seconds[name] + max((way(other) for other, those in needs.items() if name in those), default=0.0)

    assert found == {name: way(name) for name in needs}


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The default profile's params, on a machine with eight cores of two threads each."""
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**10))
    monkeypatch.setattr(jobs, "CGROUP", Path("no container"))
    monkeypatch.setattr(jobs, "OWN_GROUP", Path("no container"))
    return composed("default", ROOT / "profiles")


def test_default_jobs_fit_cores_and_memory_and_are_one_if_stages_share_more_than_that(
    eight_cores: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs.jobs_here(eight_cores) == 4
    assert jobs.jobs_here({**eight_cores, "run": {**eight_cores["run"], "threads": 16}}) == 1
    base = {**eight_cores["base"], "spin": {**eight_cores["base"]["spin"], "model": "models/smollm2"}}
    one_at_a_time: list[dict[str, Any]] = [
        {"rise": {"engines": {"student": {"engine": "vllm"}}}},
        {"rise": {"engines": {"teacher": {"engine": "openai"}}}},
        {"agent_r": {"env": [{"name": "webshop", "server": "http://host:1"}]}},
        {"base": base},
    ]
    assert [jobs.jobs_here({**eight_cores, **one}) for one in one_at_a_time] == [1, 1, 1, 1]
    with monkeypatch.context() as other:
        other.setenv("CLUSTER", "ray")
        assert jobs.jobs_here(eight_cores) == 1
    with monkeypatch.context() as other:
        other.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5 * 10**9))
        assert jobs.jobs_here(eight_cores) == 2
    with monkeypatch.context() as other:  # macOS
        other.delattr(os, "sched_getaffinity")
        other.setattr(os, "cpu_count", lambda: 4)
        assert jobs.jobs_here(eight_cores) == 2
        assert jobs.gpu_shares(1, eight_cores) == [{}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})  # the cores that this process may use
    assert jobs.jobs_here(eight_cores) == 1


def test_the_default_number_of_jobs_respects_the_limits_of_a_container(
    eight_cores: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jobs, "CGROUP", tmp_path)
    for name in ("cpu.max", "memory.max"):
        (tmp_path / name).write_text("max 100000\n" if name == "cpu.max" else "max\n")
    assert jobs.jobs_here(eight_cores) == 4
    (tmp_path / "cpu.max").write_text("450000 100000\n")
    assert jobs.jobs_here(eight_cores) == 2
    (tmp_path / "memory.max").write_text(f"{5 * 10**9}\n")
    (tmp_path / "memory.stat").write_text(f"anon {2 * 10**9}\nfile {3 * 10**9}\n")
    assert jobs.jobs_here(eight_cores) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.stat").write_text(f"anon {10**9}\nfile {4 * 10**9}\n")
    assert jobs.jobs_here(eight_cores) == 2


def test_the_default_number_of_jobs_respects_the_limits_of_a_job_within_the_machine(
    eight_cores: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm and systemd limit a control group of the job, or of one around its steps, and not the machine's."""
    step = tmp_path / "system.slice/slurmstepd.scope/job_7/step_0"
    step.mkdir(parents=True)
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    monkeypatch.setattr(jobs, "CGROUP", tmp_path)
    monkeypatch.setattr(jobs, "OWN_GROUP", tmp_path / "own")
    assert jobs.jobs_here(eight_cores) == 4
    (step.parent / "memory.max").write_text(f"{5 * 10**9}\n")
    (step.parent / "memory.stat").write_text(f"anon {2 * 10**8}\n")
    assert jobs.jobs_here(eight_cores) == 2
    (step / "cpu.max").write_text("200000 100000\n")
    assert jobs.jobs_here(eight_cores) == 1


def test_jobs_must_be_a_positive_integer_of_a_possible_size() -> None:
    assert jobs.asked("3") == 3
    for text in ("0", "-1", "two", "1.5", "٣", "9" * 5000):
        with pytest.raises(UserError, match=f"JOBS={text[:20]} is not an integer from 1 to 9999"):
            jobs.asked(text)


def test_dvc_s_message_on_a_failure_is_shown_and_control_sequences_in_output_are_escaped(folder: Path) -> None:
    definition = YAML().load(folder / "dvc.yaml")
    definition["stages"]["left"]["cmd"] = r"printf '> a quote\n\033[2Jx\n'; kill -9 $$"
    YAML().dump(definition, folder / "dvc.yaml")
    code, said = ran(folder, "left")
    assert code == 255
    assert [line for line in said.splitlines() if line.startswith((">", "\\"))] == ["> a quote", "\\x1b[2Jx"]
    assert "exited with -9" in said


def test_make_exp_writes_the_settings_runs_the_stages_and_saves_an_experiment(folder: Path) -> None:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    text = (ROOT / "profiles/default.yaml").read_text()
    (folder / "params.yaml").write_text(text)
    definition = YAML().load(folder / "dvc.yaml")
    definition["stages"]["left"]["params"] = ["run.seed"]
    YAML().dump(definition, folder / "dvc.yaml")
    run(folder, "git", "add", "--all")
    run(folder, "git", *author, "commit", "--quiet", "-m", "start")
    code, said = ran(folder, "--set=run.seed=18", "left", "right")
    assert (code, "Ran experiment(s): " in said) == (0, True), said
    assert len(set((folder / "params.yaml").read_text().splitlines()) - set(text.splitlines())) == 1
    refs = run(folder, "git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout.split()
    [ref] = [one for one in refs if re.match(r"refs/exps/[0-9a-f]{2}/", one)]
    assert "  seed: 18" in run(folder, "git", "show", f"{ref}:params.yaml").stdout
    assert "out-left" not in run(folder, "git", "ls-tree", "--name-only", ref).stdout
    assert run(folder, "git", "symbolic-ref", "HEAD").stdout.startswith("refs/heads/")
    code, said = ran(folder, "--set=run.sed=18", "left")
    assert (code, "run.sed: unknown key; did you mean 'seed'?" in said) == (2, True), said


def test_make_repro_executes_dvc_for_one_job_and_parallel_for_several(
    eight_cores: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(repro, "read_yaml", lambda _: eight_cores)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "execv", lambda _, command: became.append(command[3:]))
    repro.main(["rise-report"], "")
    repro.main(["rise-report"], "1")
    repro.main(["rise-report"], "", "run.kernels=portable run.threads=1")
    assert became == [
        [sys.executable, *PARALLEL[1:], "4", "rise-report"],
        ["dvc", "repro", "rise-report"],
        [sys.executable, *PARALLEL[1:], "5", "--set=run.kernels=portable run.threads=1", "rise-report"],
    ]
    assert kernels.chosen("portable"), "the helper starts before the settings are written"
