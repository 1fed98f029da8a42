"""DVC's own files after a kill: a truncated dvc.lock is restored, stale locks are removed, running DVCs are awaited."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from selfimprove.pipeline import dvc_files
from tests.support.repo_copy import ROOT
from tests.support.sentences import refused_with

WHOLE = """schema: '2.0'
stages:
  rise-data:
    cmd: python -m stages.rise.data
    deps:
    - path: data/sources.yaml
      hash: md5
      md5: 0123456789abcdef0123456789abcdef
      size: 12
    outs:
    - path: data/rise/tasks
      hash: md5
      md5: 0123456789abcdef0123456789abcdef.dir
      size: 34
"""
GONE = 2**22 + 1  # above the largest process id


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    dvc_files.LOCK.write_text(WHOLE)
    dvc_files.RWLOCK.parent.mkdir(parents=True)
    return tmp_path


def works(pid: int) -> str:
    return json.dumps({"write": {"data/rise": {"pid": pid, "cmd": "dvc repro"}}, "read": {}})


@pytest.mark.parametrize("length", [0, 1, 10, 30])
def test_a_truncated_dvc_lock_is_replaced_by_the_backup_and_this_is_reported(length: int) -> None:
    dvc_files.keep()
    dvc_files.LOCK.write_text(WHOLE[:length])
    assert list(dvc_files.restore()) == [
        "dvc.lock was truncated when a run was killed; restored the copy from before the last stage."
    ]
    assert dvc_files.LOCK.read_text() == WHOLE


def test_a_dvc_lock_truncated_at_any_byte_is_valid_for_dvc_after_the_repair() -> None:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML

    dvc_files.keep()
    for length in range(len(WHOLE)):
        dvc_files.LOCK.write_text(WHOLE[:length])
        list(dvc_files.restore())
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(dvc_files.LOCK.read_text()))


def test_a_truncated_backup_is_not_restored() -> None:
    dvc_files.LOCK.write_text(WHOLE[:30])
    dvc_files.keep()
    assert ["removed it" in sentence for sentence in dvc_files.restore()] == [True]


def test_no_backup_is_made_while_another_dvc_is_writing() -> None:
    dvc_files.keep()
    dvc_files.LOCK.write_text(WHOLE[:30])
    with dvc_files.REPO_LOCK.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        dvc_files.keep()
    assert dvc_files.KEPT.read_text() == WHOLE
    dvc_files.LOCK.write_text(WHOLE + "# more\n")
    dvc_files.keep()
    assert dvc_files.KEPT.read_text().endswith("# more\n")


def test_locks_are_also_taken_on_nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file must be open for writing to be locked exclusively, and open for reading to be shared."""
    flock = fcntl.flock

    def on_nfs(file: Any, kind: int) -> None:
        mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if mode == (os.O_RDONLY if kind & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    dvc_files.REPO_LOCK.touch()
    dvc_files.keep()
    assert dvc_files.KEPT.read_text() == WHOLE
    turn = dvc_files.take_turn()
    assert dvc_files.active()
    os.close(turn)
    assert not dvc_files.active()


def test_a_file_system_without_locks_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for lock in (dvc_files.take_turn, dvc_files.active):
        with refused_with(r"files in .* can't be locked \(Function not implemented\)"):
            lock()


def test_without_a_backup_a_truncated_dvc_lock_is_removed() -> None:
    dvc_files.LOCK.write_text("schema: '2.0'\nstages:\n  rise-data:\n    deps:\n")
    assert ["removed it" in sentence for sentence in dvc_files.restore()] == [True]
    assert not dvc_files.LOCK.exists()


def test_a_dvc_lock_that_git_could_not_merge_is_left_to_the_user() -> None:
    dvc_files.keep()
    size = "      size: 12\n"
    text = WHOLE.replace(size, f"<<<<<<< HEAD\n{size}=======\n      size: 13\n>>>>>>> other\n")
    dvc_files.LOCK.write_text(text)
    with refused_with("dvc.lock has git's conflict markers; take one side whole"):
        dvc_files.take_turn()
    assert dvc_files.LOCK.read_text() == text


def test_an_intact_dvc_lock_is_left_unchanged() -> None:
    assert list(dvc_files.restore()) == []
    assert dvc_files.LOCK.read_text() == WHOLE


@pytest.mark.parametrize(
    "text",
    ["", '{"write": {', "[]", "\0\0\0\0", '{"read": []}', '{"write": {"x": [1]}}', '{"write": {"x": {"pid": "z"}}}'],
)
def test_a_damaged_rwlock_is_removed(text: str) -> None:
    dvc_files.RWLOCK.write_text(text)
    assert [".dvc/tmp/rwlock was truncated" in sentence for sentence in dvc_files.restore()] == [True]
    assert not dvc_files.RWLOCK.exists()


@pytest.mark.parametrize("pid", [GONE, os.getppid()])
def test_rwlock_entries_of_ended_processes_are_removed_silently(pid: int) -> None:
    """The second process id belongs to another program, which is not DVC."""
    dvc_files.RWLOCK.write_text(works(pid).replace("dvc repro", "x"))
    assert list(dvc_files.restore()) == []
    assert json.loads(dvc_files.RWLOCK.read_text()) == {}


def test_a_run_waits_for_a_running_dvc(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys, time\nprint(1, flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "dvc", "repro"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        assert other.stdin
        other.stdout.read(1)
        dvc_files.RWLOCK.write_text(works(other.pid))
        waiting = threading.Thread(target=dvc_files.wait_for_others)
        waiting.start()
        waiting.join(timeout=1.0)
        assert waiting.is_alive()
        other.stdin.close()
        other.wait()
        waiting.join(timeout=60)
        assert not waiting.is_alive()
    assert f"another run is active in this folder (process {other.pid})" in capsys.readouterr().err


def test_a_dvc_that_ends_while_it_is_looked_at_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "dvc", "repro"], stdin=subprocess.PIPE) as other:
        read = psutil.Process.cmdline

        def ending(process: psutil.Process) -> list[str]:
            words = read(process)
            if process.pid == other.pid:
                other.kill()
                other.wait()
            return words

        monkeypatch.setattr(psutil.Process, "cmdline", ending)
        dvc_files.RWLOCK.write_text(works(other.pid))
        dvc_files.wait_for_others()


OWN_CHILD = """
import os, time
from pathlib import Path
from selfimprove.pipeline import dvc_files
helper = os.fork()
if helper == 0:
    time.sleep(20)
    os._exit(0)
dvc_files.RWLOCK.write_text('{"write": {"x": {"pid": %d, "cmd": "dvc repro"}}, "read": {}}' % helper)
dvc_files.wait_for_others()
os.kill(helper, 9)
"""


def test_a_run_does_not_wait_for_its_own_helper_that_has_the_process_id_of_a_killed_dvc() -> None:
    """As in a restarted container, where the same commands get the same ids."""
    command = [sys.executable, "-c", OWN_CHILD, "dvc", "repro"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""


def test_a_full_disk_does_not_keep_a_run_from_its_turn(tmp_path: Path) -> None:
    (tmp_path / "turn").touch()
    turn = os.open(tmp_path / "turn", os.O_RDONLY)  # a write fails, as on a full disk
    dvc_files.sign_turn(turn, 1)
    os.close(turn)


FIRST = """
import subprocess, sys
from selfimprove.pipeline.dvc_files import sign_turn, take_turn
turn = take_turn()
dvc = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[turn])
sign_turn(turn, dvc.pid)
print(dvc.pid, flush=True)
dvc.wait()
"""


def test_a_run_waits_for_another_run_s_dvc_between_stages_and_after_its_make_was_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DVC's own file lists no process here, as between two stages."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as first:
        assert first.stdout
        assert first.stdin
        dvc = int(first.stdout.readline())
        dvc_files.LOCK.write_text("schema: '2.0'\nstages:\n  half")  # as if DVC were still writing it
        first.kill()
        waiting = threading.Thread(target=lambda: os.close(dvc_files.take_turn()))
        waiting.start()
        waiting.join(timeout=1.0)
        assert waiting.is_alive()
        assert dvc_files.LOCK.read_text().endswith("half"), "no other run restores it meanwhile"
        first.stdin.close()
        waiting.join(timeout=60)
        assert not waiting.is_alive()
    said = capsys.readouterr().err
    assert f"another run is active in this folder (process {dvc}); waiting for it to end" in said
    assert "dvc.lock was truncated when a run was killed" in said
