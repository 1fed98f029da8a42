"""The warm helper: a stage run by it is the stage itself, in exit code, output, environment and death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from selfimprove.pipeline import warm
from tests.processes import gone
from tests.repo_copy import ROOT

CLIENT = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    "from selfimprove.pipeline.warm import forward\n"
    "code = None\n"
    "while code is None: code = forward('work')  # until the helper has imported\n"
    "sys.exit(code)\n"
)


def start(folder: Path, work: str, *arguments: str) -> subprocess.Popen[str]:
    """The helper beside a client that asks it to run the module ``work``."""
    shutil.copy(ROOT / "profiles/default.yaml", folder / "params.yaml")
    (folder / "work.py").write_text(work)
    (folder / "client.py").write_text(CLIENT)
    command = [sys.executable, "-m", "selfimprove.pipeline.warm", sys.executable, "client.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLOUR": "green"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_arguments_environment_folder_output_and_exit_code_are_the_stages_own(tmp_path: Path) -> None:
    work = (
        "import os, sys\nprint(sys.argv[1:], os.environ['COLOUR'], os.getcwd(), 'torch' in sys.modules)\nsys.exit(7)\n"
    )
    helper = start(tmp_path, work, "iter1")
    said, _ = helper.communicate(timeout=240)
    assert helper.returncode == 7
    assert said.split("\n")[0] == f"['iter1'] green {tmp_path} True"


def test_a_stage_whose_process_is_killed_dies_and_so_does_the_helper_with_its_command(tmp_path: Path) -> None:
    work = (
        "import os, sys, time\nfrom selfimprove.pipeline.warm import parents\n"
        "print(os.getpid(), os.getppid(), int(parents()[0][0]), flush=True)\ntime.sleep(600)\n"
    )
    helper = start(tmp_path, work)
    assert helper.stdout is not None
    child, above, _ = (int(number) for number in helper.stdout.readline().split())
    client = next(p.pid for p in psutil.Process(helper.pid).children() if p.cmdline()[1:2] == ["client.py"])
    os.kill(client, signal.SIGKILL)
    assert gone(child)
    assert gone(above)
    assert helper.wait(timeout=60) != 0


def test_without_a_helper_a_stage_runs_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(warm.ADDRESS, raising=False)
    assert warm.forward("work") is None
    monkeypatch.setenv(warm.ADDRESS, str(tmp_path / "nobody"))
    assert warm.forward("work") is None
