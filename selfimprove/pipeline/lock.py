"""Locks that let only one process at a time run a stage, or a command in a folder.

A second run of a stage is refused with an error, unless the first is an orphan: ``kill -9`` of DVC leaves its stage
running. The orphan's results are equally valid, so the second run waits for it and takes them over.
"""

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from selfimprove.core.errors import UserError
from selfimprove.pipeline.warm import born, parents

HOST = socket.gethostname()
LOCKS = Path(".scratch/locks")
OWNER = ".owner.json"
"""Suffix of the file in which the process that holds a stage's lock describes itself."""
POLL_SECONDS = 0.2
UNNAMED_POLLS = 10
"""Number of attempts after which a lock held by an unidentified process is reported."""


@contextmanager
def alone(file: Path, sentence: str) -> Iterator[None]:
    """Hold a lock.

    Raises:
        UserError: another process holds it; the message is ``sentence``.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(FileLock(file, timeout=0))
        except Timeout:
            raise UserError(sentence) from None
        yield


@contextmanager
def in_turn(file: Path, sentence: str) -> Iterator[None]:
    """Hold a lock; if another process holds it, print ``sentence`` and wait."""
    with ExitStack() as held:
        try:
            held.enter_context(alone(file, sentence))
        except UserError:
            print(sentence, file=sys.stderr, flush=True)
            held.enter_context(FileLock(file))
        yield


@contextmanager
def stage_lock(folder: Path, stage: str) -> Iterator[None]:
    """Hold the stage's lock, waiting for an orphan that holds it.

    Raises:
        UserError: it is held by a run whose parents are alive, or by a run on another machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock, owner = FileLock(folder / f"{stage}.lock"), folder / f"{stage}{OWNER}"
    _acquire(lock, owner, stage)
    try:
        me = psutil.Process()
        temporary = owner.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(json.dumps({"host": HOST, "pid": me.pid, "created": born(me), "parents": parents()}))
        os.replace(temporary, owner)
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, owner: Path, stage: str) -> None:
    """Acquire the stage's lock, as ``stage_lock`` describes."""
    said, tried = False, 0
    while True:
        try:
            lock.acquire(timeout=0)
            return
        except Timeout:
            found = holder(owner)
        if found is None:  # not written yet, or the file was removed
            tried += 1
            if tried == UNNAMED_POLLS:
                print(
                    f"{stage}: {lock.lock_file} is held by an unidentified process; waiting for it "
                    f"(`fuser {lock.lock_file}` shows its id)",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
        elif found.get("host", HOST) != HOST:
            raise UserError(
                f"stage {stage} is already running on {found['host']} (process {found['pid']}); only one machine "
                "at a time can run stages in this folder: wait for it, or end that process there."
            )
        elif not _is_orphan(found):
            raise UserError(
                f"stage {stage} is already running (process {found['pid']}); wait for it, or end that process."
            )
        elif not said:
            print(
                f"{stage}: process {found['pid']} of a killed run is still running this stage; waiting for it",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            said = True
        time.sleep(POLL_SECONDS)


def holder(owner: Path) -> dict[str, Any] | None:
    """The lock holder's description of itself; None if the process is gone or the file is missing or damaged.

    A holder on another machine, whose processes cannot be looked up, counts as alive.
    """
    try:
        value: dict[str, Any] = json.loads(owner.read_text())
        _ = [float(one) for one in (value["pid"], value["created"], *itertools.chain(*value["parents"]))]
        elsewhere = value.get("host", HOST) != HOST
        return value if elsewhere or _lives(value["pid"], value["created"]) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_orphan(holder: dict[str, Any]) -> bool:
    """Whether one of the holder's two ancestors (DVC, and the shell in which DVC starts stages) has ended."""
    return not all(_lives(pid, created) for pid, created in holder["parents"])


def _lives(pid: object, created: object) -> bool:
    try:
        process = psutil.Process(int(float(str(pid))))
        return abs(born(process) - float(str(created))) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
