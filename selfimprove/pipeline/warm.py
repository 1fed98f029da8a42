"""Fast stage starts: heavy packages are imported once per run, in a helper process, instead of once per stage.

Importing torch and transformers takes about four seconds, which a run of twenty stages would pay fourteen times.
``python -m selfimprove.pipeline.warm dvc repro`` imports them in a helper process while DVC starts, and runs the
command. A stage that finds the helper (``pipeline.forward``) requests a fork. The child takes over the stage's
arguments, folder, environment and terminal, does exactly what the stage's own process would have done, and returns its
exit code. Stages started without the helper do their own imports; a test checks that the results are the same bytes.
A SIGTERM to the stage's process is forwarded to the child, and one to this command (make forwards its own) to all
running stages: they save their work and report it, and then DVC exits as it does on Ctrl-C.

The helper has imported third-party packages and, of ours, only this module and what it imports, which read the section
``run`` and whether the params name a GPU. It has computed nothing, which makes forking safe, and ends with the command.
A child is killed when its stage's process is.

Which stages can be forked on a machine with a GPU: ``pipeline.forks``. On macOS no stage is (``core.forking``).
"""

import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from selfimprove.core.errors import UserError
from selfimprove.core.forking import START
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.forks import (
    NVML_CHECK,
    QUERY_CUDA,
    cuda_unused,
    gpu_computes,
    tried_in_fork,
    uses_gpu,
    uses_vllm,
)
from selfimprove.pipeline.forward import ADDRESS, BY_ITSELF, RUNS, TERMINATE
from selfimprove.pipeline.kernels import chosen, environment, wanted
from selfimprove.pipeline.params import PARAMS_FILE, RunParams, load_section

STARTED = "SELFIMPROVE_STARTED"
PARENTS = "SELFIMPROVE_PARENTS"
PARALLEL = (sys.executable, "-m", "selfimprove.pipeline.parallel")
"""The command that runs several DVCs at once; it gets the same preparation and clean-up as DVC itself."""

ASK_SECONDS = 0.2
FOLDER = "selfimprove-warm-"
"""Prefix of the name of the helper's folder, followed by the process id; nobody else names a folder like this."""
SHORT = "/tmp"
"""Parent of that folder if TMPDIR is too long: a socket address holds about a hundred bytes."""


def born(process: psutil.Process) -> float:
    """A number that identifies a process beside its id: its start time, on Linux in seconds since the machine's start.

    There, setting the clock (as WSL does after sleep) moves the start times of all processes, and the machine's.
    """
    return process.create_time() - (psutil.boot_time() if psutil.LINUX else 0)


def parents() -> list[list[float]]:
    """(pid, ``born``) of the stage's two nearest ancestors: DVC's shell, and DVC."""
    if PARENTS in os.environ:
        return [list(map(float, pair)) for pair in json.loads(os.environ[PARENTS])]
    return [[float(p.pid), born(p)] for p in psutil.Process().parents()[:2]]


def started() -> float:
    """Start time of the stage's own process, in seconds since the epoch."""
    return float(os.environ.get(STARTED) or psutil.Process().create_time())


def _params() -> Any:
    """All params; None if they cannot be read, which the stage itself reports."""
    try:
        return read_yaml(PARAMS_FILE)
    except UserError:
        return None


def main() -> None:
    """Run the command given as arguments, with a helper process alongside, and exit with the command's code."""
    os.environ.update(environment(wanted()))  # for the helper; a stage restarts itself to set them
    alone = {name: value for name, value in os.environ.items() if name != ADDRESS}
    if START == "spawn" or uses_vllm(_params()):
        sys.exit(_run(alone))
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clean()
        folder = _listening(server)
    except OSError:  # no space or no permission: stages do their own imports
        sys.exit(_run(alone))
    address = server.getsockname()
    alive, held = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(held)
        _serve(server, alive)
    os.close(alive)
    server.close()
    try:
        code = _run({**os.environ, ADDRESS: address})
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


def _listening(server: socket.socket) -> str:
    """Bind the socket in a new folder, start listening and return the folder.

    Raises:
        OSError: no folder can be created, or the paths in both TMPDIR and /tmp are too long for a socket address.
    """
    for place in (None, SHORT):
        folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=place)
        try:
            server.bind(str(Path(folder) / "s"))
            server.listen()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    raise OSError(f"no socket can be bound below {tempfile.gettempdir()} or {SHORT}")


def _clean() -> None:
    """Remove the folders of killed runs, identified by the process ids in their names."""
    places = {Path(tempfile.gettempdir()), Path(SHORT)}
    for folder in (found for place in places for found in place.glob(f"{FOLDER}[0-9]*-*")):
        pid = folder.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdecimal() and len(pid) < 10 and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _run(environment: dict[str, str]) -> int:
    """Run the command and return its exit code by shell convention; DVC's stage lines are shown with their position."""
    command = sys.argv[1:]
    overall = None
    if command[:2] == ["dvc", "repro"]:
        from selfimprove.pipeline.overall import Overall  # imported here: the helper, forked earlier, must not load it

        overall = Overall(command[2:])
    turn = []
    several = command[1:3] == list(PARALLEL[1:])
    if command[:1] == ["dvc"] or several:
        from selfimprove.core.cli import one_sentence
        from selfimprove.pipeline.branch import back_on_branch, keep_branch
        from selfimprove.pipeline.dvc_files import DVC, sign_turn, take_turn

        with one_sentence():
            turn.append(take_turn())
            for sentence in back_on_branch():
                print(sentence, file=sys.stderr, flush=True)
            if command[1:2] == ["exp"]:
                keep_branch()
        if not several:
            command = [*DVC, *command[1:]]
    ended = threading.Event()
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE if overall else None,
        text=True,
        errors="replace",
        pass_fds=turn,
    ) as process:
        for one in turn:
            sign_turn(one, process.pid)
        end = threading.Thread(target=_end, args=(process.pid, ended, several), daemon=True)
        signal.signal(signal.SIGTERM, lambda *_: None if end.ident else end.start())
        try:
            for line in process.stdout or ():
                print(overall.line(line) if overall else line, end="", flush=True)
            process.wait()
        except KeyboardInterrupt:  # the stage got the SIGINT too; it saves and exits
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # wait for it, however often Ctrl-C is pressed
            _finish(process)
            return 128 + signal.SIGINT
        except BrokenPipeError:  # as after a SIGTERM
            if not end.ident:
                end.start()
            _discard_output()
            _finish(process)
            return 128 + signal.SIGPIPE
        finally:
            ended.set()
            for sentence in back_on_branch() if turn and process.poll() is not None else ():
                print(sentence, file=sys.stderr, flush=True)
    if end.ident:
        return 128 + signal.SIGTERM
    if overall and process.returncode == 0:
        overall.end()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _finish(process: subprocess.Popen[str]) -> None:
    """Show the rest of the command's output, as long as it is read, and wait for the command."""
    for line in process.stdout or ():
        try:
            print(line, end="", flush=True)
        except BrokenPipeError:  # of a `tee`, which the SIGINT has ended
            _discard_output()
    process.wait()


def _discard_output() -> None:
    """Nobody reads the output any more: its reader (such as ``head``) has exited. Python flushes the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(pid: int, ended: threading.Event, several: bool) -> None:
    """Terminate the command's running stages, which save their work, and then the command itself.

    ``several``: the command runs several DVCs and starts no further stage after a SIGINT.
    """
    told: set[int] = set()
    if several:
        with suppress(psutil.Error):
            psutil.Process(pid).send_signal(signal.SIGINT)
    while not ended.wait(ASK_SECONDS):
        with suppress(psutil.Error):
            command = psutil.Process(pid)
            at_work = _stages([command])
            for stage in at_work:
                if stage.pid not in told:
                    told.add(stage.pid)
                    stage.terminate()
            # DVC waits for a terminated stage and exits when it has failed; a SIGINT meanwhile could corrupt a file
            # that DVC is writing. One is sent only if no stage was terminated and DVC is between two stages.
            if not told and not at_work and not command.children():
                told.add(pid)
                command.send_signal(signal.SIGINT)


def _stages(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The stages among processes and their descendants; a stage's own children are left to the stage."""
    found = []
    for process in processes:
        stage = any(word.startswith("stages.") for word in process.cmdline())
        found += [process] if stage else _stages(process.children())
    return found


def _serve(server: socket.socket, alive: int) -> None:
    """Main loop of the helper: import, then fork a child per request until the command ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with the command, which waits for its stages first
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    try:
        threads = load_section(read_yaml(PARAMS_FILE), "run", RunParams, str(PARAMS_FILE)).threads
        # Read when torch is imported; same values as in a stage that does its own imports.
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        os.environ.update(NVML_CHECK)
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # as in the stages, which set it after the import
        _import()
    except Exception:
        os._exit(1)  # further requests are refused, and stages do their own imports
    # Python 3.12 warns of forks in a process with threads. The thread of this one only waits for the command's end.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    params = _params()
    usable = tried_in_fork(cuda_unused)
    forks_reach_gpu = usable and uses_gpu(params) and not uses_vllm(params) and tried_in_fork(gpu_computes)
    while True:
        line, _ = server.accept()
        # Fork twice: the first child waits for the second with a thread, which a process that forks must not have.
        if os.fork() == 0:
            server.close()
            _answer(line, usable, forks_reach_gpu)
        line.close()
        _reap()


def _import() -> None:
    hidden = {name: None for name in QUERY_CUDA if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    gc.disable()  # collections during the imports would scan the new objects repeatedly
    import accelerate  # noqa: F401
    import pydantic.json_schema  # noqa: F401
    import rich.progress  # noqa: F401
    import ruamel.yaml  # noqa: F401
    import tensorboard.summary  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.llama.modeling_llama
    import transformers.trainer  # noqa: F401
    import typer  # noqa: F401

    for name in hidden:
        del sys.modules[name]
    gc.freeze()  # collections in the children would touch, and so copy, shared pages
    gc.enable()


def _answer(line: socket.socket, usable: bool, forks_reach_gpu: bool) -> None:
    """Fork the stage's process, wait for it and send its exit code; kill it if the connection closes first."""
    message, descriptors, _, _ = socket.recv_fds(line, 1 << 16, 3)
    while not message.endswith(b"\n"):
        part = line.recv(1 << 16)
        if not part:  # killed before it sent the whole request
            os._exit(0)
        message += part
    job = json.loads(message)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    try:
        process = psutil.Process(job["pid"])
        above = [[float(one.pid), born(one)] for one in process.parents()[:2]]
        os.environ.update({STARTED: str(process.create_time()), PARENTS: json.dumps(above)})
    except psutil.Error:  # killed after the request
        os._exit(0)
    params = _params()
    refused = not usable or uses_vllm(params) or (uses_gpu(params) and not forks_reach_gpu)
    if refused or not chosen(wanted()):
        line.sendall(BY_ITSELF)
        os._exit(0)
    child = os.fork()
    if child == 0:
        _become(job, descriptors, line)
    for descriptor in descriptors:
        os.close(descriptor)

    def watch() -> None:
        while line.recv(1) == TERMINATE:
            os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGKILL)  # the stage's process is gone

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(OSError):  # the stage's process has just gone
        line.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _become(job: dict[str, Any], descriptors: list[int], line: socket.socket) -> None:
    """Take over the stage's terminal and arguments in the child, and run its module."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with line:
        try:
            line.sendall(RUNS)
        except OSError:  # the stage's process has gone: nobody waits for its result
            os._exit(0)
    sys.path[0] = os.getcwd()
    sys.argv = [job["module"], *job["arguments"]]
    code = 0
    try:
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in sys.stdout, sys.stderr:
        with suppress(BrokenPipeError):  # its reader has exited
            stream.flush()
    os._exit(code)


def _end_with(alive: int) -> None:
    os.read(alive, 1)  # returns when the command's process has ended, for whatever reason
    os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
