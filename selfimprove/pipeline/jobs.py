"""Degree of parallelism (``JOBS=4``) for the stages of a run or the runs of a sweep, and the GPUs assigned to each."""

import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from selfimprove.core.errors import UserError
from selfimprove.core.overlay import mappings
from selfimprove.models.base import SHIPPED
from selfimprove.pipeline.forks import uses_gpu, uses_vllm
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, RunParams, load_section
from selfimprove.pipeline.plan.hardware import visible_gpus

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux (cgroup v2) exposes the limits of control groups; in a container, this folder is the container's own."""
OWN_GROUP = Path("/proc/self/cgroup")
"""Where Linux names the control group of this process."""
_COUNT = re.compile(r"0*[1-9][0-9]{0,3}")
STAGE_BYTES = 2_000_000_000
"""Memory of the default's largest stages, rounded up: two replicas of an engine."""


def asked(jobs: str) -> int:
    """The number of jobs given by the user.

    Raises:
        UserError: ``jobs`` is not an integer from 1 to 9999.
    """
    if not _COUNT.fullmatch(jobs):
        raise UserError(
            f"JOBS={jobs[:20]} is not an integer from 1 to 9999; it is the number of stages or runs at once."
        )
    return int(jobs)


def jobs_here(params: dict[str, Any]) -> int:
    """The number of stages with these params that fit into cores and free memory, or into a container's limits.

    It is 1 if stages share more than that (a GPU, an inference or environment server, a cluster), or if a base is not
    one of this repository's small models and so needs more memory (``make plan`` reports how much).
    """
    run = load_section(params, "run", RunParams, str(PARAMS_FILE))
    models = {params.get("base", {}).get(method, {}).get("model") for method in METHODS}
    if run.cluster.asked().kind != "none" or models - {None, SHIPPED}:
        return 1
    if any(uses_gpu(params.get(method)) or _asks_server(params.get(method)) for method in METHODS):
        return 1
    logical = _cores()
    cores = min(logical, psutil.cpu_count(logical=False) or logical, _container_cores())
    memory = min(psutil.virtual_memory().available, _container_bytes())
    return int(max(1, min(cores // run.threads, memory // STAGE_BYTES)))


def _cores() -> int:
    """The logical cores that this process may use; on macOS, which limits no process to some of them, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _container_cores() -> float:
    """CPU cores allowed by the container's limit (``docker run --cpus``); infinite without a limit."""
    return min(map(_cores_of, _groups()))


def _container_bytes() -> float:
    """Bytes of memory left under the container's limit, counting its page cache as free; infinite without a limit."""
    return min(map(_bytes_of, _groups()))


def _groups() -> list[Path]:
    """The control group of this process and those around it, such as a job's (Slurm, systemd): each may have limits."""
    with suppress(OSError, StopIteration):
        own = next(line for line in OWN_GROUP.read_text(encoding="utf-8").splitlines() if line.startswith("0::/"))
        group = CGROUP / own.removeprefix("0::/")
        return [group, *(one for one in group.parents if one.is_relative_to(CGROUP))]
    return [CGROUP]


def _cores_of(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)  # int("max") fails: there is no limit
    return math.inf


def _bytes_of(group: Path) -> float:
    with suppress(OSError, ValueError):
        most = int((group / "memory.max").read_text(encoding="ascii"))
        held = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return most - int(held["anon"])
    return math.inf


def _asks_server(params: Any) -> bool:
    """Whether params, or a part of them, contain ``engine: openai`` or an environment's ``server`` at any depth."""
    return any(part.get("engine") == "openai" or bool(part.get("server")) for _, part in mappings(params))


def gpu_shares(jobs: int, params: Any) -> list[dict[str, str]]:
    """Environment variables that assign GPUs to each of ``jobs`` concurrent runs; empty mappings without a GPU.

    Each run has its own share of the GPUs. More runs than GPUs have one each in turn, so several share a GPU: a small
    model leaves most of it idle.

    Args:
        jobs: number of concurrent runs.
        params: their params, or a list of these.

    Raises:
        UserError: ``jobs`` exceeds the number of GPUs and an engine is vLLM.
    """
    found = visible_gpus()
    if found is None:
        cores = _cores()
        points = params if isinstance(params, list) else [params]
        threads = max((load_section(one, "run", RunParams, str(PARAMS_FILE)).threads for one in points), default=1)
        if jobs > 1 and jobs * threads > cores:
            print(f"JOBS={jobs} runs of {threads} threads each (run.threads) share {cores} cores; fewer may be faster.")
        return [{} for _ in range(jobs)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str.strip, named.split(",")) if named else map(str, range(found[0]))
    devices = list(names)[: found[0]]  # CUDA ignores those after an invalid one
    if jobs > len(devices) and uses_vllm(params):
        raise UserError(
            f"JOBS={jobs}, but the number of GPUs is {len(devices)}, and runs with engine: vllm cannot share one, as "
            f"vLLM reserves its part of the memory; use JOBS={len(devices)}."
        )
    each, parts = max(1, len(devices) // jobs), min(jobs, len(devices))
    shares = [{"CUDA_VISIBLE_DEVICES": ",".join(devices[n * each : (n + 1) * each])} for n in range(parts)]
    return [shares[n % parts] for n in range(jobs)]
