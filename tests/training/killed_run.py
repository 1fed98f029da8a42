"""Runs finetune several times, each in a fork of its own that may kill itself; for test_resume.

Imports once and forks before any thread is started, so that a run costs a fraction of a second. Reads a JSON list of
runs from the file named on the command line; each names what ``finetune`` gets and where to die:
``kill_at_step`` (after that step, before its checkpoint) or ``kill_at_seal`` (checkpoint written but not yet whole).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main(runs_file: Path) -> None:
    """Do the runs in turn; write each one's report or signal to ``<runs_file>.results``."""
    import deepspeed  # noqa: F401  (accelerate would import it in every fork)
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    from selfimprove.records import Example
    from selfimprove.training import launch, trainer
    from selfimprove.training.config import FinetuneParams

    results = []
    for number, run in enumerate(json.loads(runs_file.read_text())):
        steps = runs_file.with_suffix(f".{number}.steps")
        child = os.fork()
        if child == 0:
            _run_or_die(run, steps, launch, trainer, Example, FinetuneParams)
        status = os.waitpid(child, 0)[1]
        results.append(
            {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None}
        )
        results[-1]["steps"] = [int(line) for line in steps.read_text().split()] if steps.exists() else []
        if tear := run.get("then_truncate"):
            [torn] = Path(run["scratch"]).glob(f"*/{tear}")
            torn.write_bytes(torn.read_bytes()[:-100])
    runs_file.with_suffix(".results").write_text(json.dumps(results))


def _run_or_die(run: dict[str, Any], steps: Path, launch: Any, trainer: Any, example: Any, params: Any) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def progress(done: int, total: int, note: str) -> None:
        with steps.open("a") as file:
            file.write(f"{done}\n")
        if done == run.get("kill_at_step"):
            die()

    seal = trainer.seal

    def dying_seal(folder: Path) -> None:
        if folder.name == f"checkpoint-{run.get('kill_at_seal')}":
            die()
        seal(folder)

    trainer.seal = dying_seal
    code = 1
    try:
        report = launch.finetune(
            Path(run["model"]),
            [example.model_validate(row) for row in run["examples"]],
            Path(run["out"]),
            params.model_validate(run["params"], strict=False),
            scratch=Path(run["scratch"]),
            seed=5,
            threads=1,
            progress=progress,
        )
        Path(run["report"]).write_text(report.model_dump_json())
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
