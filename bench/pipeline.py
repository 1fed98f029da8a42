"""The default run from scratch, in a private copy: wall time, share that is not model work, time of a no-op run."""

import heapq
import json
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvc.repo import Repo

from selfimprove.pipeline.parallel import Needs, needs_of, ways
from tests.support.repo_copy import copy_repo, run

JOBS = (1, 2, 4, 8)
WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as in `make repro`


def measure(method: str) -> dict[str, Any]:
    """Run one method's part of ``dvc repro`` twice.

    Returns:
        ``wall_seconds`` of the first run; ``work_seconds``: computation by engines and trainers; ``own_seconds``: all
        of the stages' own code (computation, loading, encoding, grading); ``orchestration``: share of the wall time
        outside of it (DVC, starting Python, imports, journals, publishing); ``noop_seconds`` of the second run;
        ``stages``: seconds of each stage's process; ``at_once``: seconds that these stages would take with 1, 2, 4 or
        8 parallel jobs and enough cores for all of them, without DVC.
    """
    with TemporaryDirectory() as scratch:
        folder = copy_repo(Path(scratch) / "repo", "default")
        started = time.perf_counter()
        run(folder, *WARM, "dvc", "repro", f"{method}-report", timeout=7200)
        wall = time.perf_counter() - started
        started = time.perf_counter()
        run(folder, *WARM, "dvc", "repro", f"{method}-report")
        noop = time.perf_counter() - started
        with chdir(folder), Repo() as repo:
            needs = needs_of(repo, [f"{method}-report"])
        timings = {path.stem: json.loads(path.read_text()) for path in (folder / ".scratch/timing").glob("*.json")}
    work = sum(timing.get("work_seconds", 0.0) for timing in timings.values())
    own = sum(timing.get("own_seconds", 0.0) for timing in timings.values())
    seconds = {name: timings[name]["seconds"] for name in needs}
    return {
        "wall_seconds": round(wall, 1),
        "work_seconds": round(work, 1),
        "own_seconds": round(own, 1),
        "orchestration": round(1 - own / wall, 4),
        "not_model_work": round(1 - work / wall, 4),
        "noop_seconds": round(noop, 2),
        "stages": {name: round(timing["seconds"], 1) for name, timing in sorted(timings.items())},
        "at_once": {jobs: round(schedule(needs, seconds, jobs), 1) for jobs in JOBS},
        "valid": work <= own <= wall,
    }


def schedule(needs: Needs, seconds: Mapping[str, float], jobs: int) -> float:
    """When the last stage ends with ``jobs`` parallel jobs in the order of ``make repro``, without mutual slowdown."""
    way = ways(needs, seconds)
    waiting, done = sorted(needs, key=lambda name: (-way[name], name)), set[str]()
    at_work: list[tuple[float, str]] = []
    now = 0.0
    while waiting or at_work:
        for name in [name for name in waiting if needs[name] <= done][: jobs - len(at_work)]:
            waiting.remove(name)
            heapq.heappush(at_work, (now + seconds[name], name))
        now, name = heapq.heappop(at_work)
        done.add(name)
    return now
