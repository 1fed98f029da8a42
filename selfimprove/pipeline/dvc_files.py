"""Protects DVC's own files: the run lock, backups of dvc.lock, and repairs after DVC was killed.

Only one run at a time uses a folder (``take_turn``). DVC locks files only while a stage runs, so two runs would collide
between stages, and one of them would mistake a dvc.lock that is being written for a truncated one.

Our runs replace dvc.lock in one step (``dvc_command``), but a plain ``dvc repro`` rewrites it in place after every
stage. A SIGKILL at that moment leaves it empty or truncated, and DVC then refuses to start. Every stage therefore makes
a backup when it starts, after DVC has recorded the previous stage (``keep``). Before DVC starts, a damaged dvc.lock is
replaced by the backup. Stages that finished later run again, which only publishes their finished work.
``.dvc/tmp/rwlock`` records which process uses which file; it is removed if damaged, and emptied if none of its
processes is a running DVC.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.core.errors import UserError
from selfimprove.core.publish import aside, write_text
from selfimprove.core.yaml import refuse_conflict

DVC = (sys.executable, "-m", "selfimprove.pipeline.dvc_command")
"""The command ``dvc`` of our runs: it records a stage faster."""

LOCK = Path("dvc.lock")
KEPT = Path(".scratch/dvc.lock")
RWLOCK = Path(".dvc/tmp/rwlock")
REPO_LOCK = Path(".dvc/tmp/lock")
"""Locked (``flock``) by a DVC while it writes; released while its stage runs."""

POLL_SECONDS = 0.5
TURN = Path(".scratch/locks/repro")
"""The run lock: locked by the run that uses this folder; contains its process id."""


def take_turn() -> int:
    """Acquire the run lock, reporting a wait once, and repair what a killed run has left.

    Returns the lock's file descriptor. The lock is held as long as any process has it open, including a DVC whose make
    was killed.

    Raises:
        UserError: as ``restore``; or files cannot be locked here.
    """
    TURN.parent.mkdir(parents=True, exist_ok=True)
    turn = os.open(TURN, os.O_RDWR | os.O_CREAT, 0o644)
    if not _locked(turn, fcntl.LOCK_EX):
        _say_waiting(os.pread(turn, 32, 0).decode("ascii", "replace"))
        fcntl.flock(turn, fcntl.LOCK_EX)
    wait_for_others()
    for sentence in restore():
        print(sentence, file=sys.stderr, flush=True)
    return turn


def sign_turn(turn: int, pid: int) -> None:
    """Write the id of the process that holds the lock, for the message of waiting runs."""
    with suppress(OSError):  # a full disk: DVC, which has started, reports it
        os.ftruncate(turn, 0)
        os.pwrite(turn, str(pid).encode("ascii"), 0)


def active() -> bool:
    """Whether a run uses this folder now, or a DVC that was started without make."""
    if TURN.exists():
        with TURN.open("rb") as turn:
            if not _locked(turn.fileno(), fcntl.LOCK_SH):  # NFS locks only a file open for writing exclusively
                return True
    return bool(_others())


def keep() -> None:
    """Back up dvc.lock, unless another DVC is writing. Called while the stage's own DVC waits for the stage."""
    with ExitStack() as held:
        if REPO_LOCK.exists():
            lock = held.enter_context(REPO_LOCK.open("r+b"))  # on NFS, only files open for writing can be locked so
            if not _locked(lock.fileno(), fcntl.LOCK_EX):  # other stages make backups as well
                return
        if not LOCK.exists():
            return  # the very first stage
        text = LOCK.read_bytes()
        if not (KEPT.is_file() and KEPT.read_bytes() == text):
            with aside(KEPT) as part:
                part.write_bytes(text)


def _locked(file: int, kind: int) -> bool:
    """Lock an open file; returns whether no other process holds a lock that excludes it.

    Raises:
        UserError: its file system has no locks, such as Lustre mounted without them.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"files in {Path.cwd()} can't be locked ({error.strerror}), so two runs could collide; mount that file "
            "system with locks (flock), or move the folder to another."
        ) from None
    return True


def restore() -> Iterator[str]:
    """Repair what a killed DVC left and yield a sentence per repair. No DVC may be running in this folder.

    Raises:
        UserError: git could not merge dvc.lock.
    """
    if LOCK.exists() and not _whole(LOCK):
        refuse_conflict(LOCK, LOCK.read_bytes())  # either side will do: DVC's run cache knows the stages of both
        if KEPT.is_file() and _whole(KEPT):
            with aside(LOCK) as part:
                shutil.copyfile(KEPT, part)
            yield "dvc.lock was truncated when a run was killed; restored the copy from before the last stage."
        else:
            LOCK.unlink()
            yield "dvc.lock was truncated when a run was killed and no copy exists; removed it: stages publish again."
    entries = _entries()
    if entries is None:
        RWLOCK.unlink(missing_ok=True)
        yield f"{RWLOCK} was truncated when a run was killed; removed it."
    elif _processes(entries) and not any(map(_is_dvc, _processes(entries))):
        write_text(RWLOCK, "{}")


def wait_for_others() -> None:
    """Wait while a DVC that was started without make is running in this folder; reported once."""
    said = False
    while others := _others():
        if not said:
            names = ", ".join(str(pid) for pid in sorted(set(others)))
            _say_waiting(names)
            said = True
        time.sleep(POLL_SECONDS)


def _others() -> list[int]:
    """The processes of DVCs that use files of this folder."""
    return [pid for pid in _processes(_entries() or _Entries()) if _is_dvc(pid)]


def _say_waiting(who: str) -> None:
    print(f"another run is active in this folder (process {who}); waiting for it to end", file=sys.stderr, flush=True)


def _whole(path: Path) -> bool:
    """Whether DVC accepts the file."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(path.read_bytes()))
    except (YAMLError, UnicodeDecodeError, ValueError, Invalid):
        return False
    return True


class _Process(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    pid: int
    cmd: str


class _Entries(BaseModel):
    """Schema of ``rwlock``. DVC's own is in a package whose import removes colours from our output."""

    model_config = ConfigDict(extra="forbid", strict=True)
    write: dict[str, _Process] = {}
    read: dict[str, list[_Process]] = {}


def _entries() -> _Entries | None:
    """The content of ``rwlock``; None if it is truncated or otherwise invalid for DVC."""
    try:
        return _Entries.model_validate_json(RWLOCK.read_bytes())
    except FileNotFoundError:
        return _Entries()
    except ValueError:
        return None


def _processes(entries: _Entries) -> set[int]:
    readers = [one for many in entries.read.values() for one in many]
    return {one.pid for one in [*readers, *entries.write.values()]}


def _is_dvc(pid: int) -> bool:
    """Whether a process is alive and is DVC.

    The id may have been reused by another program, in a restarted container even by this process or its helper
    (``pipeline.warm``, a fork of it), whose arguments name DVC too.
    """
    try:
        process = psutil.Process(pid)
        words, status = process.cmdline(), process.status()
    except psutil.Error:
        return False
    return (
        words != psutil.Process().cmdline()
        and status != psutil.STATUS_ZOMBIE
        and (DVC[-1] in words or "dvc" in {Path(word).name for word in words})
    )
