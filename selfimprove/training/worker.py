"""One of several training processes; started by ``processes`` as ``python -m selfimprove.training.worker job.json``.

The job file contains the dotted name of the trainer to run, so that no other method's code is imported.
"""

import json
import os
import pkgutil
import sys
from pathlib import Path

from pydantic import BaseModel

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_text
from selfimprove.training.processes import compile_apart, leave_with_launcher, load_encoded, tell
from selfimprove.training.stopping import INTERRUPTED


def main(job_file: Path) -> int:
    """Train this process's share; the first process writes the model and ``report.json``. Returns the exit code."""
    leave_with_launcher()
    compile_apart(job_file.parent)
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
    """Run the trainer named in the job file; importing it imports torch and transformers."""
    told, sequences = json.loads(job_file.read_text(encoding="utf-8")), load_encoded(job_file.with_name("examples.npz"))
    train, job_class = pkgutil.resolve_name(told["train"]), pkgutil.resolve_name(told["job_class"])
    return train(job_class.model_validate_json(json.dumps(told["job"])), sequences, tell)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
