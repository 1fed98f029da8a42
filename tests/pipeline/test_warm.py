"""The warm helper: a stage that it runs behaves as in its own process (exit code, output, environment, signals)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from selfimprove.pipeline import forward, warm
from tests.pipeline.warm_helper import start
from tests.support.processes import gone, wait_until
from tests.support.repo_copy import ROOT, copy_repo, environment

pytestmark = pytest.mark.slow


def test_a_stage_in_the_helper_keeps_its_arguments_environment_folder_output_and_exit_code(tmp_path: Path) -> None:
    work = (
        "import os, sys\nprint(sys.argv[1:], os.environ['COLOUR'], os.getcwd(), 'torch' in sys.modules)\nsys.exit(7)\n"
    )
    helper = start(tmp_path, work, "iter1")
    said, _ = helper.communicate(timeout=240)
    assert helper.returncode == 7
    assert said.split("\n")[0] == f"['iter1'] green {tmp_path} True"


def test_the_helper_loads_the_libraries_with_the_kernels_set_in_the_params(tmp_path: Path) -> None:
    work = (
        "import os, sys\nprint('torch' in sys.modules, {**os.environ, **PORTABLE} == os.environ)\n"
        "import torch\nprint(torch.backends.cpu.get_cpu_capability())\n"
    )
    helper = start(tmp_path, f"from selfimprove.pipeline.kernels import PORTABLE\n{work}", kernels="portable")
    said, _ = helper.communicate(timeout=240)
    assert said == "True True\nAVX2\n"


def test_the_helper_works_even_if_tmpdir_is_too_long_for_a_socket_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("a" * 120)  # longer than a socket address may be
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    helper = start(tmp_path, "import sys\nprint('torch' in sys.modules)\nsys.exit(7)\n")
    said, _ = helper.communicate(timeout=240)
    assert (helper.returncode, said.split("\n")[0]) == (7, "True")
    assert not list(long.glob(f"{warm.FOLDER}*"))


def test_without_disk_space_for_the_helper_s_folder_the_command_runs_without_a_helper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(
        sys, "argv", ["warm", sys.executable, "-c", f"import os, sys; sys.exit('{forward.ADDRESS}' in os.environ)"]
    )
    monkeypatch.setenv("ACCELERATOR", "cpu")
    with pytest.raises(SystemExit) as end:
        warm.main()
    assert end.value.code == 0


def test_where_forks_are_not_possible_the_command_runs_without_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS (``core.forking``)."""
    monkeypatch.setattr(warm, "START", "spawn")
    run = f"import os, sys; sys.exit('{forward.ADDRESS}' in os.environ)"
    monkeypatch.setattr(sys, "argv", ["warm", sys.executable, "-c", run])
    monkeypatch.setenv("ACCELERATOR", "cpu")
    with pytest.raises(SystemExit) as end:
        warm.main()
    assert end.value.code == 0


def test_if_the_helper_fails_to_import_a_waiting_stage_runs_in_its_own_process(tmp_path: Path) -> None:
    fails = (
        "import time\nfrom selfimprove.pipeline import warm\n"
        "def fail():\n    time.sleep(1)\n    raise ImportError\nwarm._import = fail"
    )
    helper = start(tmp_path, "import sys\nprint('torch' in sys.modules)\nsys.exit(7)\n", helper=fails)
    said, _ = helper.communicate(timeout=60)
    assert (helper.returncode, said) == (7, "False\n")


@pytest.mark.parametrize(("way", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_helper_s_imports_ends_the_run_before_the_stage_starts(
    tmp_path: Path, way: signal.Signals, code: int
) -> None:
    waits = (
        "import time\nfrom pathlib import Path\nfrom selfimprove.pipeline import warm\n"
        "def wait():\n    while not Path('go').exists(): time.sleep(0.1)\nwarm._import = wait"
    )
    helper = start(tmp_path, "from pathlib import Path\nPath('ran').touch()\n", helper=waits)

    def asks() -> bool:
        return any(p.cmdline()[2:3] == ["stages.work"] and p.net_connections("unix") for p in children(helper.pid))

    wait_until(asks)
    if way == signal.SIGINT:
        os.killpg(helper.pid, way)
    else:
        helper.terminate()
    assert helper.wait(timeout=60) == code
    (tmp_path / "go").touch()
    wait_until(lambda: not children(helper.pid))
    assert not (tmp_path / "ran").exists()


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.Error:
        return []


def test_killing_a_stage_s_process_ends_its_forked_processes_and_fails_the_command(tmp_path: Path) -> None:
    work = (
        "import os, sys, time\nfrom selfimprove.pipeline.warm import parents\n"
        "print(os.getpid(), os.getppid(), int(parents()[0][0]), flush=True)\ntime.sleep(600)\n"
    )
    helper = start(tmp_path, work)
    assert helper.stdout is not None
    child, above, _ = (int(number) for number in helper.stdout.readline().split())
    client = next(p.pid for p in psutil.Process(helper.pid).children() if p.cmdline()[2:3] == ["stages.work"])
    os.kill(client, signal.SIGKILL)
    assert gone(child)
    assert gone(above)
    assert helper.wait(timeout=60) != 0


@pytest.mark.parametrize(("to", "code"), [("stage", 130), ("command", 128 + signal.SIGTERM), ("both", 143)])
def test_a_sigterm_to_the_stage_or_to_the_command_lets_the_stage_save_and_exit(
    tmp_path: Path, to: str, code: int
) -> None:
    # It sleeps in short intervals: Python handles signals between calls, and one that arrives just before a long call,
    # which is most likely on a loaded machine, would be handled only after it.
    work = (
        "import sys, time\nfrom selfimprove.training.stopping import sigterm_interrupts\n"
        "with sigterm_interrupts():\n    try:\n        print('at work', flush=True)\n"
        "        while True: time.sleep(0.1)\n"
        "    except KeyboardInterrupt:\n        time.sleep(1)\n        print('saved', flush=True)\n"
        "        sys.exit(130)\n"
    )
    helper = start(tmp_path, work)
    assert helper.stdout is not None
    assert helper.stdout.readline() == "at work\n"
    client = next(p.pid for p in psutil.Process(helper.pid).children() if p.cmdline()[2:3] == ["stages.work"])
    for pid in {"stage": [client], "command": [helper.pid], "both": [client, helper.pid]}[to]:
        os.kill(pid, signal.SIGTERM)
    assert helper.communicate(timeout=60)[0] == "saved\n"
    assert helper.returncode == code


def test_a_sigterm_ends_the_stage_but_does_not_interrupt_the_command_s_writes_afterwards(tmp_path: Path) -> None:
    command = (
        "import subprocess, sys, time\n"
        "stage = 'import time; print(\"at work\", flush=True); time.sleep(600)'\n"
        "subprocess.run([sys.executable, '-c', stage, 'stages.work'])\n"
        "time.sleep(2)\nprint('written', flush=True)\n"
    )
    (tmp_path / "command.py").write_text(command)
    run = [sys.executable, "-m", "selfimprove.pipeline.warm", sys.executable, "command.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATOR": "cpu"}
    with subprocess.Popen(run, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "at work\n"
        running.terminate()
        said = running.stdout.read()
    assert (said, running.returncode) == ("written\n", 128 + signal.SIGTERM)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "launcher"), [("SIGTERM", "single"), ("SIGTERM", "fork"), ("Ctrl-C", "fork")])
def test_after_sigterm_or_ctrl_c_the_stage_saves_and_the_next_run_resumes(
    tmp_path: Path, way: str, launcher: str
) -> None:
    """On Ctrl-C, a terminal sends SIGINT to every process of its foreground process group."""
    folder = copy_repo(tmp_path)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    sft = params["rise"]["rows"]["base"]["train"]
    processes = 1 if launcher == "single" else 2
    sft |= {"epochs": 400.0, "save_steps": 100_000, "launcher": {"kind": launcher, "processes": processes}}
    yaml.dump(params, folder / "params.yaml")
    environ = {**environment(), "ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro", "rise-finetune@base"]

    def ended_after_some_steps() -> tuple[int, str]:
        with subprocess.Popen(
            command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as running:
            assert running.stderr is not None
            said = ""
            for line in running.stderr:
                said += line
                if "rise-finetune@base: 1" in said or "rise-finetune@base: " in line:
                    if way == "Ctrl-C":
                        os.killpg(running.pid, signal.SIGINT)
                    else:
                        running.send_signal(signal.SIGTERM)
                    break
            said += running.stderr.read()
        return running.returncode, said

    code, said = ended_after_some_steps()
    ends_with = {"SIGTERM": 143, "Ctrl-C": 130}[way]
    assert (code, "stopped; run the same command again to resume." in said) == (ends_with, True), said
    assert not re.search("traceback|rwlock", said, re.IGNORECASE), said
    [saved] = folder.glob(".scratch/stages/rise-finetune-base/*/*/checkpoint-*")
    assert _locked(folder) == _locked(ROOT)  # still the entry that a clone has
    assert not [p for p in psutil.process_iter() if _works_in(p, folder)]
    code, said = ended_after_some_steps()
    assert f"finetune: resuming at step {saved.name.removeprefix('checkpoint-')} of " in said


def _locked(folder: Path) -> Any:
    return YAML(typ="safe", pure=True).load(folder / "dvc.lock")["stages"]["rise-finetune@base"]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False


FAKE_DVC = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does while a stage runs
sys.exit(subprocess.run([sys.executable, "-m", "stages.work"]).returncode)
"""
SAVES = """
import signal, sys, time
from pathlib import Path
for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, signal.default_int_handler)
try:
    while True:
        print("works", flush=True)
        time.sleep(0.05)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path("saves").touch()
    while not Path("may_end").exists():
        time.sleep(0.05)
    Path("saved").touch()
    sys.exit(130)
"""


def start_repro(folder: Path) -> subprocess.Popen[str]:
    """Start ``dvc repro`` with the helper, of a stand-in for DVC that runs one stage."""
    (folder / "stages").mkdir()
    (folder / "stages/__init__.py").touch()
    (folder / "stages/work.py").write_text(SAVES)
    run = "from selfimprove.pipeline import dvc_files, warm\n"
    run += f"import sys\ndvc_files.DVC = (sys.executable, '-c', {FAKE_DVC!r})\nwarm.main()"
    return subprocess.Popen(
        [sys.executable, "-c", run, "dvc", "repro"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_after_a_second_ctrl_c_the_run_still_waits_for_its_stage(tmp_path: Path) -> None:
    with start_repro(tmp_path) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "works\n"
        os.killpg(running.pid, signal.SIGINT)
        wait_until((tmp_path / "saves").exists)
        os.killpg(running.pid, signal.SIGINT)
        (tmp_path / "may_end").touch()
        running.stdout.read()
        assert running.stderr.read() == ""
    assert (running.returncode, (tmp_path / "saved").exists()) == (130, True)


def test_if_the_reader_of_the_output_exits_the_stage_saves_and_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "may_end").touch()
    with start_repro(tmp_path) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "works\n"
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 141
    assert (tmp_path / "saved").exists()


def test_without_a_helper_a_stage_continues_in_its_own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "stages.rise.data"])
    monkeypatch.delenv(forward.ADDRESS, raising=False)
    forward.forward()
    monkeypatch.setenv(forward.ADDRESS, str(tmp_path / "nobody"))
    forward.forward()


def test_folders_of_killed_runs_are_removed_and_those_of_active_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    pid, ours = int(ended.stdout), f"{warm.FOLDER}{os.getpid()}-x"
    of_others = [f"warm-{pid}-runs", f"{warm.FOLDER}winter", f"{warm.FOLDER}{'9' * 20}-x"]  # no id has twenty digits
    for name in (f"{warm.FOLDER}{pid}-x", ours, *of_others):
        (tmp_path / name).mkdir()
    warm._clean()
    assert {path.name for path in tmp_path.iterdir()} == {ours, *of_others}


def test_a_caller_killed_before_it_sends_its_request_leaves_no_waiting_process() -> None:
    program = (
        "import socket; from selfimprove.pipeline.warm import _answer\n"
        "ours, theirs = socket.socketpair(); theirs.close(); _answer(ours, True, False)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_a_folder_in_which_no_run_lock_can_be_made_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".scratch").write_text("a file")
    (tmp_path / "params.yaml").write_text("run: {seed: 1}\n")
    command = [sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro", "rise-report"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(".scratch")


def test_a_branch_that_cannot_be_noted_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".scratch/branch").mkdir(parents=True)
    (tmp_path / "params.yaml").write_text("run: {seed: 1}\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "exp", "run", "rise-report"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, ".scratch/branch is a folder; name a file.\n")
