"""The ``fork`` launcher: data-parallel training on the cores of one machine, without importing torch again.

The calling process forks all training processes and computes nothing itself. It forwards progress, re-raises the error
of a failed process and terminates the others. Forking is safe here because the threads that torch (libgomp) started for
the forking thread are the only state that is lost: each process trains in a new thread, which gets new ones. Its main
thread waits for the caller to exit, so a killed stage leaves no processes behind.
"""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any, NoReturn, TypeVar, cast

import torch.distributed

from selfimprove.core.errors import UserError, first_line
from selfimprove.core.forking import START
from selfimprove.training.processes import ORPHANED, loopback
from selfimprove.training.progress import Progress
from selfimprove.training.stopping import SAVING_SECONDS, ask, sigterm_interrupts

LAST_WORDS_SECONDS = 5.0
"""How long other processes may still report their errors after one has failed."""


T = TypeVar("T")


@dataclass(frozen=True)
class _Place:
    """A process's rank, the number of processes, threads per process, and the rendezvous file."""

    rank: int
    world: int
    threads: int
    meeting: Path


@dataclass
class _Process:
    rank: int
    process: BaseProcess
    line: Connection
    """receives its progress, result or error"""


def run_forked(
    work: Callable[[Progress], T], *, processes: int, threads: int, folder: Path, progress: Progress | None = None
) -> T:
    """Run ``work`` in several processes at once and return the first process's result.

    The processes form one torch.distributed group (gloo).

    Args:
        work: called in each process with a function that forwards progress; its result must be picklable, and on macOS
            ``work`` too.
        threads: CPU threads per process.
        folder: for the rendezvous file and the log.

    Raises:
        UserError: raised by a process, or a process was killed. Other errors are re-raised with their tracebacks.
    """
    meeting, log_file = folder / "meeting", folder / "worker.log"
    meeting.unlink(missing_ok=True)  # left by a killed run
    log_file.write_bytes(b"")
    context: Any = get_context(START)
    started: list[_Process] = []
    try:
        with sigterm_interrupts():
            for rank in range(processes):
                receiver, sender = context.Pipe(duplex=False)
                place = _Place(rank, processes, threads, meeting)
                process = context.Process(target=_become, args=(work, place, sender, log_file))
                try:
                    process.start()
                except (AttributeError, PicklingError, TypeError) as error:
                    if START == "fork":
                        raise
                    raise UserError(
                        f"launcher kind 'fork' sends the environment to new processes on this system, which this one "
                        f"does not allow ({first_line(error)}); set launcher: {{kind: single}}."
                    ) from error
                sender.close()
                started.append(_Process(rank, process, receiver))
            return cast(T, _follow(started, progress, log_file))
    except KeyboardInterrupt:
        _let_save(started)
        raise
    finally:
        for one in started:
            one.process.kill()
            one.process.join()
            one.line.close()


def _follow(processes: Sequence[_Process], progress: Progress | None, log_file: Path) -> Any:
    """Read the processes' messages until all have ended; returns rank 0's result or raises the most telling error."""
    result: Any = None
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
                result = value
    if errors:  # a process that ends breaks the others' connections, so prefer a UserError to their errors
        raise min(errors, key=lambda error: not isinstance(error, UserError))
    return result


def _let_save(processes: Sequence[_Process]) -> None:
    """Ask the processes to stop and wait until they have saved their progress; another Ctrl-C ends the wait."""
    for process in processes:
        process.process.terminate()
    deadline = time.monotonic() + SAVING_SECONDS
    at_work = [process.line for process in processes]
    while at_work and (ready := wait(at_work, timeout=max(0.0, deadline - time.monotonic()))):
        for line in ready:
            assert isinstance(line, Connection)
            try:
                line.recv()
            except (EOFError, OSError):
                at_work.remove(line)


def _killed(process: _Process, log_file: Path) -> UserError:
    """The error for a process that ended without reporting one."""
    process.process.join()
    code = process.process.exitcode
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with code {code}"
    return UserError(
        f"fork: training process {process.rank} was ended {how}; check {log_file} and the machine's free memory, then "
        "run again: training resumes from the newest checkpoint."
    )


def _become(work: Callable[[Progress], Any], place: _Place, line: Connection, log_file: Path) -> NoReturn:
    """In the new process: work in a new thread and wait in this one. Never returns to the caller's code."""
    try:
        gc.freeze()  # keep collections from touching imported objects, which would copy their memory pages
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller also gets it, and then asks us to stop
        signal.signal(signal.SIGTERM, ask)
        log = os.open(log_file, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Replaced, because another thread of the caller may have held the inherited streams' lock.
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        threading.Thread(target=_work, args=(work, place, line), daemon=True).start()
        caller = parent_process()
        assert caller is not None
        caller.join()  # returns when it has exited, for any reason
    finally:
        os._exit(ORPHANED)


def _work(work: Callable[[Progress], Any], place: _Place, line: Connection) -> None:
    try:
        line.send(("result", _join_and_do(work, place, line)))
    except BaseException as error:
        line.send(("error", (_portable(error), traceback.format_exc())))
    finally:
        sys.stdout.flush()
        os._exit(0)


def _join_and_do(work: Callable[[Progress], Any], place: _Place, line: Connection) -> Any:
    """Join the process group through the environment, as under torchrun, and do this process's share."""
    rank, world = str(place.rank), str(place.world)
    os.environ.update(
        RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, OMP_NUM_THREADS=str(place.threads)
    )
    for name, value in loopback().items():
        os.environ.setdefault(name, value)
    store = torch.distributed.FileStore(str(place.meeting), place.world)
    torch.distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world)

    def tell(done: int, total: int, note: str, metrics: Mapping[str, float]) -> None:
        line.send(("step", (done, total, note, dict(metrics))))

    result = work(tell)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return result if place.rank == 0 else None


def _portable(error: BaseException) -> Exception:
    """A picklable copy of the error, which keeps the types that the stage runner handles separately."""
    if isinstance(error, UserError):
        return UserError(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return RuntimeError(f"{type(error).__name__}: {error}")
