"""Runs ``learn`` several times, each in its own fork, which may kill itself; used by test_learn.

Reads a JSON list of runs from the file named on the command line. Each run specifies its model, output folder and
RLParams, and optionally when to die: ``kill_at_step`` (after that iteration, before its checkpoint) or ``kill_at_seal``
(after that checkpoint is written, before it is sealed).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ORPHAN_SECONDS = 60


def main(runs_file: Path) -> None:
    """Execute the runs in order; write each one's signal, exit code and iterations to a file with suffix .results."""
    import transformers.models.llama.modeling_llama  # noqa: F401

    import selfimprove.engines.cpu.engine
    import selfimprove.training.fork  # noqa: F401
    from selfimprove.methods.reflect_rl import learn, rl_checkpoints

    gc.freeze()  # a collection in a fork would traverse all objects and copy their memory
    results = []
    for number, run in enumerate(json.loads(runs_file.read_text())):
        steps = runs_file.with_suffix(f".{number}.steps")
        child = os.fork()
        if child == 0:
            _run_or_die(run, steps, learn, rl_checkpoints)
        status = os.waitpid(child, 0)[1]
        done = [int(line) for line in steps.read_text().split()] if steps.exists() else []
        results.append([os.WTERMSIG(status), os.WEXITSTATUS(status) if os.WIFEXITED(status) else None, done])
    runs_file.with_suffix(".results").write_text(json.dumps(results))


def _run_or_die(run: dict[str, Any], steps: Path, learn: Any, checkpoints: Any) -> None:
    from selfimprove.methods.reflect_rl.rl_config import RLParams
    from tests.methods.reflect_rl.test_learn import make_job

    caller = os.getpid()
    step, seal = checkpoints.Checkpoints.save_if_due, checkpoints.seal

    def die() -> None:
        os.kill(caller, signal.SIGKILL)
        time.sleep(ORPHAN_SECONDS)  # only reached in a fork of the caller, which must end on its own

    def dying_step(self: Any, state: Any, log: Any) -> None:
        if self._group.first:  # the other processes wait for this one in the next line
            with steps.open("a") as file:
                file.write(f"{state.done}\n")
            if state.done == run.get("kill_at_step"):
                die()
        step(self, state, log)

    def dying_seal(folder: Path) -> None:
        if folder.name == f"checkpoint-{run.get('kill_at_seal')}":
            die()
        seal(folder)

    checkpoints.Checkpoints.save_if_due, checkpoints.seal = dying_step, dying_seal
    code = 1
    try:
        params = RLParams.model_validate(run["params"], strict=False)
        report = learn.learn(make_job(Path(run["model"]), Path(run["out"]), params, reflector=True))
        times = {"seconds", "play_seconds", "generated_tokens", "resumed_at"}
        (Path(run["out"]) / "report.json").write_text(report.model_dump_json(exclude=times))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
