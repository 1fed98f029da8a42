"""Runs stage scripts, each in its own process forked from this one, and kills them at requested moments.

Torch, transformers and the stages' other imports are loaded once, before any fork, so that a run takes a fraction of a
second. Reads one JSON job per line from standard input and answers each with a line::

    {"module": "stages.rise.generate", "item": "iter1", "cwd": "...", "env": {}, "file_limit": null,
     "kill": {"at": "journal", "count": 3, "when": "after"}}
    {"code": null, "signal": 9, "stderr": "...", "log": ["computed", "journaled", ...]}

A script runs as with ``python -m``. ``kill.at`` is the event at which the process dies: ``journal`` (an entry),
``replace`` (``os.replace``, which completes and publishes files) or ``step`` (of training). It dies at the ``count``-th
such event; ``when``: before it, after it, or halfway (``torn``: with half of the entry's bytes written). Alternatively,
it dies ``kill.after`` seconds after the start.
``log`` lists the work actually done: completions computed by the engine, entries journaled, steps trained.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any


def main() -> None:
    """Serve jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with the answers
    import accelerate  # noqa: F401
    import deepspeed  # noqa: F401
    import tensorboard.summary  # noqa: F401
    import torch
    import transformers.models.llama.modeling_llama
    import transformers.trainer  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")  # compiles hundreds of patterns at the first call
    torch.set_num_threads(1)
    _import_what_stages_do()
    gc.freeze()  # a collection in a fork would scan all objects and so copy their memory
    for line in sys.stdin:
        job = json.loads(line)
        folder = Path(job["cwd"])
        child = os.fork()
        if child == 0:
            _run(job, folder)
        status = os.waitpid(child, 0)[1]
        log = folder / ".log"
        answer = {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "stderr": (folder / ".stderr").read_text(encoding="utf-8"),
            "log": log.read_text().split() if log.exists() else [],
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _import_what_stages_do() -> None:
    """Import each stage script, then unload the script itself, because a fork runs it from its own folder."""
    for script in sorted(Path("stages").rglob("*.py")):
        importlib.import_module(".".join(script.with_suffix("").parts))
    for name in [name for name in sys.modules if name.split(".")[0] == "stages"]:
        del sys.modules[name]


def _run(job: dict[str, Any], folder: Path) -> None:
    """Become the stage; never returns."""
    code = 1
    try:
        os.chdir(folder)
        log = folder / ".log"
        log.unlink(missing_ok=True)
        os.dup2(os.open(folder / ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        os.environ.update(job.get("env") or {})
        _watch(log, job.get("kill") or {})
        if "after" in (job.get("kill") or {}):
            Thread(target=_die, args=(job["kill"]["after"],), daemon=True).start()
        if job.get("file_limit"):
            sys.dont_write_bytecode = True  # the limit would truncate bytecode, and the next import would fail
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_limit"], resource.RLIM_INFINITY))
        sys.argv = [job["module"], *([job["item"]] if job.get("item") else [])]
        sys.path[0] = str(folder)
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _die(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch(log: Path, kill: dict[str, Any]) -> None:
    """Log the work done, and die at the requested moment."""
    from selfimprove.core.journal import Journal
    from selfimprove.engines.cpu.engine import TransformersEngine
    from selfimprove.engines.progress import StageProgress

    counts = {"journal": 0, "replace": 0, "step": 0}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    really_write = os.write

    def say(word: str) -> None:
        really_write(descriptor, f"{word}\n".encode())

    def moment(at: str, when: str) -> None:
        if kill.get("at") == at and kill["count"] == counts[at] and kill["when"] == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(at: str, word: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **more: Any) -> Any:
            counts[at] += 1
            moment(at, "before")
            value = call(*arguments, **more)
            say(word)
            moment(at, "after")
            return value

        return wrapper

    def tearing_write(file: int, data: bytes) -> int:
        if kill.get("when") == "torn" and kill["count"] == counts["journal"] and b' {"key"' in data[:30]:
            really_write(file, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return really_write(file, data)

    compute = TransformersEngine.generate

    async def counted(self: TransformersEngine, request: Any) -> Any:
        completions = await compute(self, request)
        say("computed")
        return completions

    TransformersEngine.generate = counted  # type: ignore[method-assign]
    Journal.add = watched("journal", "journaled", Journal.add)  # type: ignore[method-assign]
    StageProgress.reach = watched("step", "step", StageProgress.reach)  # type: ignore[method-assign]
    os.replace = watched("replace", "replaced", os.replace)
    os.write = tearing_write  # type: ignore[assignment]


if __name__ == "__main__":
    main()
