"""Runs finetune (or finetune_pairs) several times for test_resume, each in a fork that may kill itself.

Imports once and forks before any thread starts, so that a run takes a fraction of a second. Reads a JSON list of runs
from the file given on the command line. Each run specifies the arguments of ``finetune`` and when to die:
``kill_at_step`` (after that step, before its checkpoint; with launcher ``fork`` the other processes continue meanwhile
and die at any moment after it), ``kill_at_seal`` (checkpoint written but not yet sealed) or, for pairs,
``kill_at_score`` (after the opponent has scored this many). ``then_truncate``, ``then_flip`` and ``then_zero`` name a
file to damage afterwards. The next run starts when all processes of the previous one have ended.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORPHAN_SECONDS = 60
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncate": lambda content: content[:-100],
    "flip": lambda content: content[:-200] + bytes([content[-200] ^ 4]) + content[-199:],
    "zero": lambda content: bytes(len(content)),  # as after a power loss
}
"""What ``then_…`` does to a file after the run has ended."""


def main(runs_file: Path) -> None:
    """Execute the runs in order; write each one's signal, exit code and steps to ``<runs_file>.results``."""
    import deepspeed  # noqa: F401  (accelerate would import it in every fork)
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    from selfimprove.methods.spin import (
        opponent,  # noqa: F401
        pair_trainer,  # noqa: F401
    )
    from selfimprove.training import fork, loop, trainer  # noqa: F401

    gc.freeze()  # a garbage collection in a fork would touch, and thus copy, all this memory
    results = []
    for number, run in enumerate(json.loads(runs_file.read_text())):
        steps = runs_file.with_suffix(f".{number}.steps")
        alive, held = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(alive)  # it and its own forks hold the other end open while they live
            _run_or_die(run, steps)
        os.close(held)
        status = os.waitpid(child, 0)[1]
        if not select.select([alive], [], [], ORPHAN_SECONDS)[0]:
            raise RuntimeError(f"run {number} left processes behind")
        os.close(alive)
        results.append(
            {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None}
        )
        results[-1]["steps"] = [int(line) for line in steps.read_text().split()] if steps.exists() else []  # type: ignore[assignment]
        for damage, made in DAMAGES.items():
            if name := run.get(f"then_{damage}"):
                [file] = Path(run["scratch"]).glob(f"*/{name}")
                file.write_bytes(made(file.read_bytes()))
    runs_file.with_suffix(".results").write_text(json.dumps(results))


def _run_or_die(run: dict[str, Any], steps: Path) -> None:
    from selfimprove.core.records import Example, Pair
    from selfimprove.methods.spin import opponent
    from selfimprove.methods.spin import training as pairs
    from selfimprove.methods.spin.pair_config import PairParams
    from selfimprove.training import launch, loop
    from selfimprove.training.config import FinetuneParams

    stage = os.getpid()

    def die() -> None:
        os.kill(stage, signal.SIGKILL)
        time.sleep(ORPHAN_SECONDS)  # in a fork of the stage, which must end on its own

    def progress(done: int, *_: Any) -> None:
        if not done:
            return  # the opponent is still scoring
        with steps.open("a") as file:
            file.write(f"{done}\n")
        if done == run.get("kill_at_step"):
            die()

    seal = loop.seal

    def dying_seal(folder: Path) -> None:
        if folder.name == f"checkpoint-{run.get('kill_at_seal')}":
            die()
        seal(folder)

    loop.seal = dying_seal
    score_pairs = opponent.score_pairs
    scored = 0

    def dying_score(*arguments: Any) -> list[opponent.Score]:
        nonlocal scored
        if scored == run.get("kill_at_score"):
            die()
        scored += 1
        return score_pairs(*arguments)

    opponent.score_pairs = dying_score  # type: ignore[assignment]
    code = 1
    try:
        model, out = Path(run["model"]), Path(run["out"])
        rest: dict[str, Any] = {"scratch": Path(run["scratch"]), "seed": 5, "threads": 1, "progress": progress}
        if "pairs" in run:
            duels = [Pair.model_validate(row) for row in run["pairs"]]
            cfg = PairParams.model_validate(run["params"], strict=False)
            report: Any = pairs.finetune_pairs(model, model, duels, out, cfg, **rest)
        else:
            examples = [Example.model_validate(row) for row in run["examples"]]
            report = launch.finetune(
                model, examples, out, FinetuneParams.model_validate(run["params"], strict=False), **rest
            )
        Path(run["report"]).write_text(report.model_dump_json())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
