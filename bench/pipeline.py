"""The default run from scratch, in a private copy: wall time, share of it that is not model work, no-op time."""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.repo_copy import copy_repo, run

WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as `make repro` does


def measure(method: str) -> dict[str, Any]:
    """Run one method's part of ``dvc repro`` twice.

    Returns:
        ``wall_seconds`` of the first run; ``work_seconds`` of it that engines and trainers computed; ``own_seconds``
        that the stages' own code took (those, loading, encoding, grading); ``orchestration``: the share that it did
        not (DVC, starting Python, imports, journals, publishing); ``noop_seconds``; ``stages``: seconds of each stage's
        process.
    """
    with TemporaryDirectory() as scratch:
        folder = copy_repo(Path(scratch) / "repo", "default")
        started = time.perf_counter()
        run(folder, *WARM, "dvc", "repro", f"{method}-report", timeout=7200)
        wall = time.perf_counter() - started
        started = time.perf_counter()
        run(folder, *WARM, "dvc", "repro", f"{method}-report")
        noop = time.perf_counter() - started
        timings = {path.stem: json.loads(path.read_text()) for path in (folder / ".scratch/timing").glob("*.json")}
    work = sum(timing.get("work_seconds", 0.0) for timing in timings.values())
    own = sum(timing.get("own_seconds", 0.0) for timing in timings.values())
    return {
        "wall_seconds": round(wall, 1),
        "work_seconds": round(work, 1),
        "own_seconds": round(own, 1),
        "orchestration": round(1 - own / wall, 4),
        "not_model_work": round(1 - work / wall, 4),
        "noop_seconds": round(noop, 2),
        "stages": {name: round(timing["seconds"], 1) for name, timing in sorted(timings.items())},
        "valid": work <= own <= wall,
    }
