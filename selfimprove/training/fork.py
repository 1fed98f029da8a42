"""The ``fork`` launcher: data-parallel training on the cores of one machine, without importing torch again.

The calling process forks all training processes and computes nothing itself: it passes progress on, raises what one of
them raises, and ends the others then. Why forking is safe here: what a forked process cannot use any more are the
threads that torch (libgomp) has started for the thread that forks, so each process trains in a thread of its own, which
gets new ones. Its first thread waits for the caller's end: no killed stage leaves processes behind.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed

from selfimprove.errors import UserError
from selfimprove.training.encode import EncodedExample
from selfimprove.training.report import TrainReport
from selfimprove.training.trainer import Job, Progress, train

ORPHANED = 3
LAST_WORDS_SECONDS = 5.0
"""How long the other processes may still tell why they ended once one has failed."""


@dataclass
class _Process:
    rank: int
    pid: int
    line: Connection
    """where its progress, its report or its error comes from"""


def train_forked(job: Job, examples: Sequence[EncodedExample], progress: Progress | None = None) -> TrainReport:
    """``trainer.train`` by ``job.params.launcher.processes`` processes with ``job.threads`` threads each.

    Raises:
        UserError: what one of them raised, or that it was killed. Any other error of theirs comes with its traceback.
    """
    count = job.params.launcher.processes
    meeting, log_file = job.checkpoints / "meeting", job.checkpoints / "worker.log"
    meeting.unlink(missing_ok=True)  # a killed run's
    alive, held = os.pipe()
    processes: list[_Process] = []
    try:
        with log_file.open("wb") as log:
            for rank in range(count):
                receiver, sender = Pipe(duplex=False)
                pid = os.fork()
                if pid == 0:
                    os.close(held)
                    _become(job, examples, rank, meeting, sender, alive, log.fileno())
                sender.close()
                processes.append(_Process(rank, pid, receiver))
        return _follow(processes, progress, log_file)
    finally:
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)  # not waited for yet, so it is still the one that we started
            os.waitpid(process.pid, 0)
            process.line.close()
        os.close(alive)
        os.close(held)


def _follow(processes: Sequence[_Process], progress: Progress | None, log_file: Path) -> TrainReport:
    """Read what the processes send until all have ended; the first one's report, or the most telling error."""
    report: TrainReport | None = None
    errors: list[Exception] = []
    at_work = {process.line: process for process in processes}
    while at_work:
        ready = wait(list(at_work), timeout=LAST_WORDS_SECONDS if errors else None)
        if not ready:
            break
        for line in ready:
            assert isinstance(line, Connection)
            try:
                kind, value = line.recv()
            except (EOFError, OSError):
                errors.append(_killed(at_work.pop(line), log_file))
                continue
            if kind == "step":
                if progress is not None:
                    progress(*value)
                continue
            process = at_work.pop(line)
            if kind == "error":
                error, trace = value
                if not isinstance(error, UserError):
                    error.add_note(f"in training process {process.rank}:\n{trace}")
                errors.append(error)
            elif process.rank == 0:
                report = value
    if errors:  # one that ends takes the others' connections with it: their errors say nothing
        raise min(errors, key=lambda error: not isinstance(error, UserError))
    assert report is not None
    return report


def _killed(process: _Process, log_file: Path) -> UserError:
    """The error for a process that ended without a word."""
    status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert status is not None
    code = status.si_status
    how = f"with code {code}" if status.si_code == os.CLD_EXITED else f"by {signal.Signals(code).name}"
    return UserError(
        f"fork: training process {process.rank} was ended {how}; look at {log_file} and at the machine's free memory, "
        "then run again: it goes on from its newest checkpoint."
    )


def _become(
    job: Job, examples: Sequence[EncodedExample], rank: int, meeting: Path, line: Connection, alive: int, log: int
) -> NoReturn:
    """In the forked process: train in a new thread, wait in this one; never returns into the caller's code."""
    try:
        gc.freeze()  # collections need not look through what was imported, which would copy its memory
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller, who gets it too, ends us
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Not the inherited ones: another thread of the caller may have held their lock.
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        threading.Thread(target=_work, args=(job, examples, rank, meeting, line), daemon=True).start()
        os.read(alive, 1)  # returns when the caller is gone, however it ended
    finally:
        os._exit(ORPHANED)


def _work(job: Job, examples: Sequence[EncodedExample], rank: int, meeting: Path, line: Connection) -> None:
    try:
        line.send(("report", _train(job, examples, rank, meeting, line)))
    except BaseException as error:
        line.send(("error", (_portable(error), traceback.format_exc())))
    finally:
        sys.stdout.flush()
        os._exit(0)


def _train(
    job: Job, examples: Sequence[EncodedExample], rank: int, meeting: Path, line: Connection
) -> TrainReport | None:
    """Join the group as torchrun's processes do, by the environment, and train this process's share."""
    world = job.params.launcher.processes
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
        OMP_NUM_THREADS=str(job.threads),
    )  # fmt: skip
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # nobody else can connect
    store = torch.distributed.FileStore(str(meeting), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)

    def tell(*step: Any) -> None:
        line.send(("step", step))

    report = train(job, examples, tell)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return report if rank == 0 else None


def _portable(error: BaseException) -> Exception:
    """A copy that survives being sent; what the stage runner treats on its own keeps its type."""
    if isinstance(error, UserError):
        return UserError(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return RuntimeError(f"{type(error).__name__}: {error}")
