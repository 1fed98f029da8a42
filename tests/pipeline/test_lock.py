"""Only one process at a time runs a stage. (A second run and an orphan, with real stages: test_rerun.)"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psutil
import pytest

from selfimprove.core.errors import UserError
from selfimprove.pipeline.lock import stage_lock

HOLD = """
import sys; from pathlib import Path; from selfimprove.pipeline.lock import stage_lock
with stage_lock(Path(sys.argv[1]), "stage"):
    print("held", flush=True); sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_run_is_refused_with_the_process_id_of_the_first(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(UserError, match=rf"stage stage is already running \(process {process.pid}\)"):  # noqa: SIM117
            with stage_lock(tmp_path, "stage"):
                pass
        with stage_lock(tmp_path, "another"):
            pass
        process.communicate("")
        with stage_lock(tmp_path, "stage"):
            assert json.loads((tmp_path / "stage.owner.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "stage.owner.json").exists()


def test_a_second_run_is_refused_although_the_clock_has_been_set_since_the_first_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As WSL does after sleep: psutil then gives other start times of running processes."""
    with holder(tmp_path) as process:
        booted = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
        monkeypatch.setattr("selfimprove.pipeline.lock.time.sleep", lambda _: pytest.fail("it waited"))
        with pytest.raises(UserError, match=rf"is already running \(process {process.pid}\)"):  # noqa: SIM117
            with stage_lock(tmp_path, "stage"):
                pass


def test_a_run_on_another_machine_is_reported_with_its_host(tmp_path: Path) -> None:
    with holder(tmp_path):
        owner = tmp_path / "stage.owner.json"
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "host": "node7", "pid": 1 << 30}))
        with pytest.raises(UserError, match=r"already running on node7 \(process 1073741824\); only one"):  # noqa: SIM117
            with stage_lock(tmp_path, "stage"):
                pass


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "stage.owner.json").exists()
        with stage_lock(tmp_path, "stage"):
            pass


@pytest.mark.parametrize(
    "name",
    [
        None, "[]", "null", "[" * 5000, '{"host": "other"}', '{"pid": 1, "created": "x", "parents": []}',
        '{"pid": 1e999, "created": 1, "parents": []}',
    ],
)  # fmt: skip
def test_waiting_for_a_holder_with_a_missing_or_damaged_owner_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    """``name``: content of the owner file; None if there is no file."""
    with holder(tmp_path) as process:
        (tmp_path / "stage.owner.json").unlink()
        if name is not None:
            (tmp_path / "stage.owner.json").write_text(name)
        said: list[str] = []

        def end() -> None:
            while not said:
                said.append(capsys.readouterr().err)
                said.remove("") if not said[0] else None
                time.sleep(0.05)
            process.kill()

        watcher = Thread(target=end)
        watcher.start()
        with stage_lock(tmp_path, "stage"):
            pass
        watcher.join()
    assert "stage.lock is held by an unidentified process; waiting for it" in said[0]


def test_a_run_waits_for_an_orphaned_holder_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The holder's parent, a shell, has been killed; the holder itself exits at the end of its input."""
    script = tmp_path / "hold.py"
    script.write_text(HOLD)
    shell = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} {script} {tmp_path}; exit 0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    assert shell.stdin
    assert shell.stdout
    assert shell.stdout.readline() == "held\n"
    orphan = psutil.Process(json.loads((tmp_path / "stage.owner.json").read_text())["pid"])
    shell.kill()
    shell.wait()
    got: list[str] = []

    def wait_and_hold() -> None:
        with stage_lock(tmp_path, "stage"):
            got.append("lock")

    waiter = Thread(target=wait_and_hold)
    waiter.start()
    said = ""
    while "still running" not in said and waiter.is_alive():
        said += capsys.readouterr().err
        time.sleep(0.02)
    assert f"process {orphan.pid} of a killed run is still running" in said
    assert got == []
    shell.stdin.close()
    waiter.join()
    assert got == ["lock"]
    shell.stdout.close()


def test_an_error_while_the_lock_is_held_releases_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), stage_lock(tmp_path, "stage"):
        raise RuntimeError
    with stage_lock(tmp_path, "stage"):
        pass
