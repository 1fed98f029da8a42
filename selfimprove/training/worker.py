"""One of several training processes; started by ``launch`` as ``python -m selfimprove.training.worker job.json``."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_text
from selfimprove.training.launch import LAUNCHED, PROGRESS_MARK, load_encoded

ORPHANED, INTERRUPTED = 3, 130
PARENT_SECONDS = 1.0
"""How often a worker looks whether its parent, torchrun's agent, is still there."""


def main(job_file: Path) -> int:
    """Train this process's share; the first process writes the model and ``report.json``. Returns the exit code."""
    threading.Thread(target=_leave_with_launcher, daemon=True).start()
    try:
        report = _train(job_file)
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    if os.environ.get("RANK") == "0":
        write_text(job_file.with_name("report.json"), report.model_dump_json())

    import torch.distributed

    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return 0


def _train(job_file: Path) -> BaseModel:
    """The objective that the job names; imports torch and transformers."""
    told, sequences = job_file.read_text(encoding="utf-8"), load_encoded(job_file.with_name("examples.npz"))
    if json.loads(told)["kind"] == "pairs":
        from selfimprove.methods.spin.pair_trainer import PairJob, train_pairs

        return train_pairs(PairJob.model_validate_json(told), sequences, _tell)
    from selfimprove.training.trainer import Job, train

    return train(Job.model_validate_json(told), sequences, _tell)


def _tell(done: int, total: int, note: str, metrics: Mapping[str, float]) -> None:
    print(PROGRESS_MARK + json.dumps([done, total, note, dict(metrics)]), flush=True)


def _leave_with_launcher() -> None:
    """End this process when the one that launched it is gone, or torchrun's agent, its parent.

    ``launch.watch`` holds the other end of its workers' standard input, and says so by ``LAUNCHED``: end-of-file then
    means that it is gone. A node that is started by hand, or by sbatch, has no launcher and any standard input.
    """
    agent = os.getppid()
    launched = [0] if os.environ.get(LAUNCHED) == "1" else []
    while os.getppid() == agent:
        readable, _, _ = select.select(launched, [], [], PARENT_SECONDS)
        if readable and not os.read(0, 4096):
            break
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
